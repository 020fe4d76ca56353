"""Settings of the SLA board."""

import re
from dataclasses import dataclass

from shared_model.settings import Check, setting


def _are_origins(value: str) -> bool:
    return all(re.fullmatch(r"https?://[A-Za-z0-9.:\[\]-]+", it) for it in value.split(" ")) if value else True


_ORIGINS = Check(_are_origins, "origins, by space")


@dataclass(frozen=True)
class BoardSettings:
    frames: str = setting(
        "",
        "Origins of pages that may frame the SLA board, by space, as https://airflow.example; empty: none.",
        _ORIGINS,
    )

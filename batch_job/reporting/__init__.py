"""A run's report: a page for people and a document for programs, both made from the run's record alone.

They lie beside the record, RUN/report.html and RUN/report.json for RUN.json. The page needs nothing but itself.
"""

import dataclasses
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from batch_job.record import LENGTH_STEP, RunRecord
from batch_job.reporting import page
from batch_job.reporting.cost import cost_per_million
from shared_model.errors import JobError


def write(record: Path, run: RunRecord, price_per_hour: float) -> tuple[Path, Path]:
    """Write both, each in one rename; returns their paths. `price_per_hour`: of the machines, in any currency.

    Raises: JobError naming what could not be written.
    """
    folder = record.with_suffix("")
    html = _replace(folder / "report.html", page.html(run, price_per_hour))
    return html, _replace(folder / "report.json", json.dumps(document(run, price_per_hour), indent=1) + "\n")


def document(run: RunRecord, price_per_hour: float) -> dict[str, Any]:
    """The record, and what follows from it."""
    scoring = run.scoring
    rate = scoring.rows_per_second if scoring else 0.0
    derived = {
        "price_per_hour": price_per_hour,
        "cost_per_million": cost_per_million(price_per_hour, rate) if rate else None,
        "tokens_per_second": round(scoring.tokens_per_second, 1) if scoring and scoring.seconds else None,
        "busy_share": round(scoring.busy_share, 4) if scoring and scoring.busy_share is not None else None,
        "length_step": LENGTH_STEP,
    }
    return {**dataclasses.asdict(run), **derived}


def _replace(path: Path, text: str) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8", errors="replace")
        return temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise JobError(f"{path} could not be written: {error.strerror}; make room, then run `report` again") from error

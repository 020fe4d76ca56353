"""Answers of a release's further heads, for tests that make up those of the first."""

from typing import Any

from protos.scoring.v1.storage_pb2 import PublishedHead
from shared_model.heads import Heads
from shared_model.output import OutputSpec
from shared_model.types import TOP_K

_SCORE = 0.5


def published(heads: Heads) -> list[PublishedHead]:
    """As a published score holds them."""
    return [
        PublishedHead(
            labels=range(spec.output.kept(TOP_K)) if spec.output.names else (),
            scores=[_SCORE] * spec.output.kept(TOP_K),
        )
        for spec in heads.further
    ]


def columns(heads: Heads) -> list[tuple[str, dict[str, Any]]]:
    """As the column `heads` of the scores table holds them."""
    return [(spec.name, _column(spec.output)) for spec in heads.further]


def tensors(heads: Heads) -> list[tuple[str, str, list[int]]]:
    """Name, type and width of the outputs that the Open Inference Protocol has of them."""
    found: list[tuple[str, str, list[int]]] = []
    for spec in heads.further:
        found.append((f"scores_{spec.name}", "FP32", [spec.output.width]))
        found += [(f"abstained_{spec.name}", "BOOL", [])] * spec.output.abstains
    return found


def _column(output: OutputSpec) -> dict[str, Any]:
    labels = [{"label": name, "score": _SCORE} for name in output.names[: output.kept(TOP_K)]]
    return {"top_k": labels, "vector": None if labels else [_SCORE] * output.width, "abstained": None}

"""A release's report: what the gate measured on this machine, for programs (JSON) and for people (Markdown).

It lies beside the release's files and outside its id, because measurements differ between machines.
"""

import json
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared_model.encoding import TokenBatch
from shared_model.engine import Engine
from shared_model.releases import store
from shared_model.releases.manifest import Variant
from shared_model.releases.parity import Parity

MARKDOWN = "report.md"

#: (rows, tokens) of the latency profile: single texts of every length, and a full batch of short ones.
SHAPES = ((1, 8), (1, 16), (1, 32), (1, 64), (1, 128), (1, 256), (64, 32))
#: A shape is timed at least this often, and until its runs took this long together or were this many.
_MIN_RUNS, _MIN_SECONDS, _MAX_RUNS = 3, 0.05, 50

_CONFUSIONS_KEPT = 10


@dataclass(frozen=True)
class Latency:
    """Median time of one call with `rows` texts, each of `tokens` tokens."""

    rows: int
    tokens: int
    milliseconds: float


@dataclass(frozen=True)
class Confusion:
    """The reference names one label and the variant another, on `texts` texts."""

    reference: str
    variant: str
    texts: int


@dataclass(frozen=True)
class VariantReport:
    """One variant on this machine. `threads`: what its latency was measured with. `confusion`: most frequent first."""

    parity: Parity
    size_bytes: int
    threads: int
    latency: tuple[Latency, ...]
    confusion: tuple[Confusion, ...]

    @property
    def name(self) -> str:
        return f"{self.parity.precision}/{self.parity.device}"

    def to_document(self) -> dict[str, Any]:
        document = asdict(self)
        del document["parity"]
        return {**self.parity.to_document(), **document}


@dataclass(frozen=True)
class ReleaseReport:
    """`evaluation` is "labelled" or "generated". `unproven`: variants whose device is not here."""

    release: str
    evaluation: str
    evaluation_sha256: str
    calibration_sha256: str
    variants: tuple[VariantReport, ...]
    unproven: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return all(variant.parity.passed for variant in self.variants)

    def to_document(self) -> dict[str, Any]:
        variants = [variant.to_document() for variant in self.variants]
        return {**asdict(self), "passed": self.passed, "variants": variants}

    def to_markdown(self) -> str:
        sections = (_summary(self), _agreement_table(self), _latency_table(self), _confusion_table(self))
        return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def write(folder: Path, report: ReleaseReport) -> None:
    """Write both forms into a release's folder."""
    (folder / MARKDOWN).write_text(report.to_markdown())
    (folder / store.REPORT).write_text(json.dumps(report.to_document(), indent=1) + "\n")


def size_bytes(folder: Path, variant: Variant) -> int:
    """Bytes of the files a variant is opened from."""
    return sum((folder / path).stat().st_size for path in set(variant.files.values()))


def confusion(
    scores: NDArray[np.float32], reference: NDArray[np.float32], labels: Sequence[str]
) -> tuple[Confusion, ...]:
    """The pairs of labels that differ most often between probabilities (texts, labels) and the reference's."""
    pairs = zip(reference.argmax(1).tolist(), scores.argmax(1).tolist(), strict=True)
    counts = Counter(pair for pair in pairs if pair[0] != pair[1])
    return tuple(
        Confusion(labels[expected], labels[best], texts)
        for (expected, best), texts in counts.most_common(_CONFUSIONS_KEPT)
    )


def latency_profile(engine: Engine, max_tokens: int, shapes: Iterable[tuple[int, int]] = SHAPES) -> tuple[Latency, ...]:
    """Time every shape the model can read."""
    return tuple(Latency(*shape, _milliseconds(engine, *shape)) for shape in shapes if shape[1] <= max_tokens)


def _milliseconds(engine: Engine, rows: int, tokens: int) -> float:
    # The first call at a shape builds its kernels.
    engine.warm_up([(rows, tokens)])
    batch = TokenBatch(np.ones((rows, tokens), np.int64), np.ones((rows, tokens), np.int64))
    seconds: list[float] = []
    while len(seconds) < _MIN_RUNS or (sum(seconds) < _MIN_SECONDS and len(seconds) < _MAX_RUNS):
        started = time.perf_counter()
        engine.score(batch)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1000


def _summary(report: ReleaseReport) -> list[str]:
    texts = report.variants[0].parity.texts
    return [
        f"# {report.release}: {'passed' if report.passed else 'REFUSED'}",
        "",
        *(f"- {v.name} {failure}" for v in report.variants for failure in v.parity.failures),
        f"- judged on {texts} {report.evaluation} texts, sha256 `{report.evaluation_sha256}`",
        f"- INT8 calibrated on texts with sha256 `{report.calibration_sha256}`",
        f"- not proven on this machine: {', '.join(report.unproven) or 'none'}",
    ]


def _agreement_table(report: ReleaseReport) -> list[str]:
    columns = ("agreement", "where clear", "accuracy", "points lost", "McNemar p", "max Δ probability", "MB")
    return _table(("variant", "compiled", *columns), [_agreement_row(variant) for variant in report.variants])


def _agreement_row(variant: VariantReport) -> tuple[str, ...]:
    measured = variant.parity
    return (
        variant.name,
        measured.compiled,
        f"{measured.agreement:.2%}",
        _known(measured.clear_agreement, ".2%"),
        _known(measured.accuracy, ".2%"),
        _known(measured.accuracy_drop_points, ".2f"),
        _known(measured.mcnemar_p, ".3f"),
        f"{measured.max_probability_difference:.4f}",
        f"{variant.size_bytes / 1e6:.1f}",
    )


def _latency_table(report: ReleaseReport) -> list[str]:
    shapes = [f"{latency.rows}×{latency.tokens}" for latency in report.variants[0].latency]
    rows = [
        (variant.name, str(variant.threads), *(f"{latency.milliseconds:.2f}" for latency in variant.latency))
        for variant in report.variants
    ]
    return ["Latency of one call by rows × tokens, median in ms:", "", *_table(("variant", "threads", *shapes), rows)]


def _confusion_table(report: ReleaseReport) -> list[str]:
    rows = [(v.name, c.reference, c.variant, str(c.texts)) for v in report.variants for c in v.confusion]
    if not rows:
        return []
    header = ("variant", "fp32 says", "the variant says", "texts")
    return ["Where a variant names another label than fp32, most frequent first:", "", *_table(header, rows)]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


def _known(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)

"""The gate: does a variant agree with the fp32 reference closely enough to be promoted?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared_model.encoding import Encoding, collate, plan_batches
from shared_model.engine import Engine, probabilities

#: Share of texts on which a variant and the reference must name the same label.
MIN_AGREEMENT = 0.99
#: Points of accuracy a variant may lose against the reference, where labels are known.
MAX_ACCURACY_DROP = 0.3


@dataclass(frozen=True)
class Parity:
    """One variant against the reference. Shares, not percent; `accuracy` is None where labels are not known.

    `compiled` is the precision the device ran, which may differ from the variant's.
    """

    precision: str
    device: str
    compiled: str
    texts: int
    agreement: float
    max_probability_difference: float
    accuracy: float | None
    reference_accuracy: float | None
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.failures

    def to_document(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


def score_all(engine: Engine, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
    """Probabilities (texts, labels), in the order of `encodings`."""
    rows: list[NDArray[np.float32] | None] = [None] * len(encodings)
    for batch in plan_batches([e.tokens for e in encodings], max_rows=64, token_budget=2048):
        for index, row in zip(batch, probabilities(engine.score(collate([encodings[i] for i in batch]))), strict=True):
            rows[index] = row
    return np.stack([row for row in rows if row is not None])


def judge(
    engine: Engine,
    precision: str,
    scores: NDArray[np.float32],
    reference: NDArray[np.float32],
    truth: NDArray[np.int64] | None = None,
) -> Parity:
    """Compare probabilities (texts, labels) of a variant with the reference's; `truth` are label indices (texts,)."""
    best, expected = scores.argmax(1), reference.argmax(1)
    agreement = float((best == expected).mean())
    accuracy = None if truth is None else float((best == truth).mean())
    reference_accuracy = None if truth is None else float((expected == truth).mean())
    failures = []
    if not np.isfinite(scores).all():
        failures.append("some probabilities are not finite")
    if agreement < MIN_AGREEMENT:
        failures.append(f"names the reference's label for {agreement:.2%} of texts, needs {MIN_AGREEMENT:.2%}")
    if accuracy is not None and reference_accuracy is not None:
        drop = (reference_accuracy - accuracy) * 100
        if drop > MAX_ACCURACY_DROP:
            failures.append(f"loses {drop:.2f} points of accuracy, may lose {MAX_ACCURACY_DROP}")
    return Parity(
        precision=precision,
        device=engine.device.value,
        compiled=engine.precision.value,
        texts=len(scores),
        agreement=agreement,
        max_probability_difference=float(np.abs(scores - reference).max()),
        accuracy=accuracy,
        reference_accuracy=reference_accuracy,
        failures=tuple(failures),
    )

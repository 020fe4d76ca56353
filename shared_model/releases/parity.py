"""The gate: does a variant agree with the fp32 reference closely enough to be promoted?"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared_model.encoding import Encoding, collate, plan_batches
from shared_model.engine import Engine, probabilities

#: Share of texts on which a variant and the reference must name the same label.
MIN_AGREEMENT = 0.99
#: Without labels, agreement is asked for only where the reference prefers its label to the next by this probability:
#: generated messages such as "ok" or "still waiting" have no intent, and which label comes first there is chance.
CLEAR_MARGIN = 0.10
#: Points of accuracy a variant may lose against the reference, where labels are known.
MAX_ACCURACY_DROP = 0.3


@dataclass(frozen=True)
class Parity:
    """One variant against the reference. Shares, not percent; what needs labels is None where they are not known.

    `compiled` is the precision the device ran, which may differ from the variant's. `clear_agreement` is over the texts
    where the reference's margin is at least CLEAR_MARGIN; None if there are none. `mcnemar_p`: how likely a difference
    in accuracy at least this large is if the two are equally good.
    """

    precision: str
    device: str
    compiled: str
    texts: int
    agreement: float
    clear_agreement: float | None
    max_probability_difference: float
    accuracy: float | None
    reference_accuracy: float | None
    mcnemar_p: float | None
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def accuracy_drop_points(self) -> float | None:
        """Percentage points of accuracy lost against the reference; negative where the variant is better."""
        if self.accuracy is None or self.reference_accuracy is None:
            return None
        return (self.reference_accuracy - self.accuracy) * 100

    def to_document(self) -> dict[str, Any]:
        return {**asdict(self), "accuracy_drop_points": self.accuracy_drop_points, "passed": self.passed}


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
    same, clear = best == expected, _margins(reference) >= CLEAR_MARGIN
    difference = np.abs(scores - reference)
    measured = Parity(
        precision=precision,
        device=engine.device.value,
        compiled=engine.precision.value,
        texts=len(scores),
        agreement=float(same.mean()),
        clear_agreement=float(same[clear].mean()) if clear.any() else None,
        max_probability_difference=float(np.where(np.isfinite(difference), difference, 1.0).max()),
        accuracy=None if truth is None else float((best == truth).mean()),
        reference_accuracy=None if truth is None else float((expected == truth).mean()),
        mcnemar_p=None if truth is None else mcnemar_p(best == truth, expected == truth),
        failures=() if np.isfinite(scores).all() else ("some probabilities are not finite",),
    )
    return replace(measured, failures=(*measured.failures, *_failures(measured)))


def mcnemar_p(right: NDArray[np.bool_], reference_right: NDArray[np.bool_]) -> float:
    """Two-sided p-value of McNemar's exact test, paired by text: 1.0 where both are right on the same texts.

    Only texts that one of the two gets right can tell them apart; if neither is better, each falls either way.
    """
    # Serving processes have no scipy; only building releases needs it.
    from scipy.stats import binomtest

    gained, lost = int((right & ~reference_right).sum()), int((reference_right & ~right).sum())
    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def _failures(measured: Parity) -> Iterator[str]:
    drop = measured.accuracy_drop_points
    if drop is None:
        agreement, texts = measured.clear_agreement or 0.0, "texts with a clear label"
    else:
        agreement, texts = measured.agreement, "texts"
        if drop > MAX_ACCURACY_DROP:
            yield f"loses {drop:.2f} points of accuracy, may lose {MAX_ACCURACY_DROP}"
    if agreement < MIN_AGREEMENT:
        yield f"names the reference's label for {agreement:.2%} of {texts}, needs {MIN_AGREEMENT:.2%}"


def _margins(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Probability of each row's best label less that of its second."""
    two_best = np.partition(scores, -2, axis=1)[:, -2:]
    return two_best[:, 1] - two_best[:, 0]

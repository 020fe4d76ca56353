"""Compares a variant's scores with those of the fp32 reference. Pure."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from shared_model.evaluation.agreement import RULES, Bools, Rules, Truth
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.output import Floats, OutputSpec


@dataclass(frozen=True)
class Parity:
    """One variant against the reference. Shares, not percent; without labels, values that need them are null.

    `clear_agreement`: over the texts where the reference is certain, None without such texts; the gate requires it if
    the texts are not labelled. `accuracy`: the share answered right, or a regression's rank correlation with the truth.
    `mcnemar_p`: probability of an accuracy difference at least this large if the two are equally good.
    """

    texts: int
    agreement: float
    clear_agreement: float | None
    max_difference: float
    accuracy: float | None
    reference_accuracy: float | None
    mcnemar_p: float | None
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def asked_agreement(self) -> float:
        """The agreement that the gate requires: over all texts if they are labelled, else over the clear ones."""
        return self.agreement if self.accuracy is not None else self.clear_agreement or 0.0

    @property
    def accuracy_drop_points(self) -> float | None:
        """Percentage points of accuracy lost against the reference; negative where the variant is better."""
        if self.accuracy is None or self.reference_accuracy is None:
            return None
        return (self.reference_accuracy - self.accuracy) * 100

    def to_document(self) -> dict[str, Any]:
        return {**asdict(self), "accuracy_drop_points": self.accuracy_drop_points}


def judge(output: OutputSpec, scores: Floats, reference: Floats, truth: Truth | None, bounds: GateSettings) -> Parity:
    """Compare a variant's scores (texts, width) with the reference's, and both with the truth if it is known."""
    rules = RULES[output.kind]
    right = rules.right
    same, clear = rules.agrees(scores, reference), rules.clear(reference)
    difference = np.abs(scores - reference)
    measured = Parity(
        texts=len(scores),
        agreement=float(same.mean()),
        clear_agreement=float(same[clear].mean()) if clear.any() else None,
        max_difference=float(difference[np.isfinite(difference)].max(initial=0.0)),
        accuracy=None if truth is None else accuracy(rules, scores, truth),
        reference_accuracy=None if truth is None else accuracy(rules, reference, truth),
        mcnemar_p=mcnemar_p(right(scores, truth), right(reference, truth)) if right and truth is not None else None,
        failures=(),
    )
    return replace(measured, failures=tuple(_failures(measured, output, scores, bounds)))


def disagreements(output: OutputSpec, scores: Floats, reference: Floats) -> list[int]:
    """Indices of texts on which the two differ, the largest distance first."""
    rules = RULES[output.kind]
    distance = rules.distance(scores, reference)
    return sorted(np.flatnonzero(~rules.agrees(scores, reference)).tolist(), key=lambda row: -distance[row])


def mcnemar_p(right: Bools, reference_right: Bools) -> float:
    """Two-sided p-value of McNemar's exact test, paired by text: 1.0 if both are right on the same texts.

    Only texts that exactly one of the two gets right count; if both are equally good, either is as likely.
    """
    # Serving processes have no scipy; only building releases needs it.
    from scipy.stats import binomtest

    gained, lost = int((right & ~reference_right).sum()), int((reference_right & ~right).sum())
    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def accuracy(rules: Rules, scores: Floats, truth: Truth) -> float:
    """The share answered right, or a regression's rank correlation with the truth."""
    if rules.right:
        return float(rules.right(scores, truth).mean())
    from scipy.stats import rankdata

    # Spearman's correlation is the correlation of ranks; for constant values it is undefined and counts as 0.
    with np.errstate(invalid="ignore"):
        found = [np.corrcoef(rankdata(s), rankdata(t))[0, 1] for s, t in zip(scores.T, truth.T, strict=True)]
    return float(np.nan_to_num(found).mean())


def _failures(measured: Parity, output: OutputSpec, scores: Floats, bounds: GateSettings) -> Iterator[str]:
    rules, drop = RULES[output.kind], measured.accuracy_drop_points
    if not np.isfinite(scores).all():
        yield f"gives scores that are no numbers for {int((~np.isfinite(scores)).any(axis=1).sum())} texts"
    # The tolerance is for rounding: shares of texts are not exact in binary.
    if drop is not None and drop > bounds.gate_max_accuracy_drop + 1e-9:
        allowed = f"may lose {bounds.gate_max_accuracy_drop:g} (TANDEM_GATE_MAX_ACCURACY_DROP)"
        yield f"loses {drop:.2f} points of {rules.accuracy}, {allowed}"
    if drop is None and measured.clear_agreement is None:
        yield "is never sure of a label (it looks untrained); pass --eval to judge it by accuracy"
    elif measured.asked_agreement < bounds.gate_min_agreement:
        of = "texts" if drop is not None else rules.clear_texts
        needed = f"needs {bounds.gate_min_agreement:.2%} (TANDEM_GATE_MIN_AGREEMENT)"
        yield f"{rules.claim} for {measured.asked_agreement:.2%} of {of}, {needed}"

"""Compares a variant's scores with those of the fp32 reference. Pure."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from shared_model.evaluation.agreement import RULES, Bools, Rules, Truth
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.evaluation.significance import MIN_CLEAR, SIGNIFICANT_LOSS, LossRule, loss_p, wilson_upper
from shared_model.output import Floats, OutputKind, OutputSpec


@dataclass(frozen=True)
class Parity:
    """One variant against the reference. Shares, not percent; without labels, values that need them are null.

    `texts`, `agreement`: over the evaluation's own texts. `clear_agreement`: over the `clear_texts`, its own and added
    ones where the reference is certain, None without such texts; `clear_bound`: its upper bound, which the gate judges.
    `labelled_clear`: clear texts with a label. `accuracy`: the share answered right, or a regression's rank correlation
    with the truth. `mcnemar_p`: probability of an accuracy difference at least this large if the two are equally good;
    `loss_p`: one-sided. `discordance`: share of texts that exactly one of the two gets right. `detected_points`: losses
    that these texts show with probabilities of 80 and 95 % at this discordance.
    """

    texts: int
    agreement: float
    clear_agreement: float | None
    max_difference: float
    accuracy: float | None
    reference_accuracy: float | None
    mcnemar_p: float | None
    failures: tuple[str, ...]
    clear_texts: int = 0
    clear_bound: float | None = None
    labelled_clear: int = 0
    loss_p: float | None = None
    discordance: float | None = None
    detected_points: tuple[float | None, float | None] = (None, None)

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def asked_agreement(self) -> float:
        """The agreement that ranks recipes: over the clear texts, or over all if no text is clear."""
        return self.agreement if self.clear_agreement is None else self.clear_agreement

    @property
    def judges_accuracy(self) -> bool:
        """Whether enough labelled texts are clear to judge a loss of accuracy."""
        return self.accuracy is not None and self.labelled_clear >= MIN_CLEAR

    @property
    def accuracy_drop_points(self) -> float | None:
        """Percentage points of accuracy lost against the reference; negative where the variant is better."""
        if self.accuracy is None or self.reference_accuracy is None:
            return None
        return (self.reference_accuracy - self.accuracy) * 100

    def to_document(self) -> dict[str, Any]:
        return {**asdict(self), "accuracy_drop_points": self.accuracy_drop_points}


def judge(
    output: OutputSpec,
    scores: Floats,
    reference: Floats,
    truth: Truth | None,
    bounds: GateSettings,
    own: int | None = None,
) -> Parity:
    """Compare a variant's scores (texts, width) with the reference's, and both with the truth if it is known. All are
    at temperature 1; only their largest difference is measured at the temperature of `output`.

    own: number of first rows that are the evaluation's own; the others were added to it for clear agreement alone.
    """
    rules = RULES[output.kind]
    own = len(scores) if own is None else own
    same, clear = rules.agrees(scores, reference), rules.clear(reference)
    difference = np.abs(output.recalibrated(scores) - output.recalibrated(reference))
    measured = Parity(
        texts=own,
        agreement=float(same[:own].mean()),
        clear_agreement=float(same[clear].mean()) if clear.any() else None,
        max_difference=float(difference[np.isfinite(difference)].max(initial=0.0)),
        accuracy=None,
        reference_accuracy=None,
        mcnemar_p=None,
        failures=(),
        clear_texts=int(clear.sum()),
        clear_bound=wilson_upper(int(same[clear].sum()), int(clear.sum())) if clear.any() else None,
    )
    if truth is not None:
        measured = replace(measured, labelled_clear=int(clear[:own].sum()))
        measured = _with_accuracy(measured, rules, scores[:own], reference[:own], truth, bounds)
    return replace(measured, failures=tuple(_failures(measured, output, scores, bounds)))


def unjudged(measured: Parity, kind: OutputKind) -> str | None:
    """Why a loss of accuracy is not judged, and how many texts would be needed; None if it is judged, or there is no
    accuracy."""
    if measured.judges_accuracy or kind is OutputKind.EMBEDDING:
        return None
    accuracy = f"{RULES[kind].accuracy} of variants is not judged"
    needed = f"{MIN_CLEAR} labelled {RULES[kind].clear_texts} are needed"
    if measured.accuracy is None:
        return f"{accuracy}: no text is labelled, {needed} (--eval)"
    found = f"{accuracy}: {needed}, and {measured.labelled_clear} of the {measured.texts} labelled texts are such"
    if not measured.labelled_clear:
        return found
    return f"{found}; about {math.ceil(MIN_CLEAR * measured.texts / measured.labelled_clear):,} texts would be needed"


def _with_accuracy(
    measured: Parity, rules: Rules, scores: Floats, reference: Floats, truth: Truth, bounds: GateSettings
) -> Parity:
    measured = replace(
        measured,
        accuracy=accuracy(rules, scores, truth),
        reference_accuracy=accuracy(rules, reference, truth),
    )
    if rules.right is None:
        return measured
    right, reference_right = rules.right(scores, truth), rules.right(reference, truth)
    gained, lost = gained_and_lost(right, reference_right)
    rule, discordance = LossRule(len(truth), bounds.gate_max_accuracy_drop), (gained + lost) / len(truth)
    return replace(
        measured,
        mcnemar_p=mcnemar_p(right, reference_right),
        loss_p=loss_p(gained, lost),
        discordance=discordance,
        detected_points=(rule.detected(discordance, 0.80), rule.detected(discordance, 0.95)),
    )


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

    gained, lost = gained_and_lost(right, reference_right)
    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def gained_and_lost(right: Bools, reference_right: Bools) -> tuple[int, int]:
    """Texts that only the first gets right, and texts that only the reference does."""
    return int((right & ~reference_right).sum()), int((reference_right & ~right).sum())


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
    rules = RULES[output.kind]
    if not np.isfinite(scores).all():
        yield f"gives scores that are no numbers for {int((~np.isfinite(scores)).any(axis=1).sum())} texts"
    if measured.judges_accuracy and _lost(measured, bounds):
        p = "" if measured.loss_p is None else f" (McNemar p {measured.loss_p:.4f})"
        allowed = f"may lose {bounds.gate_max_accuracy_drop:g} (TANDEM_GATE_MAX_ACCURACY_DROP)"
        yield f"loses {measured.accuracy_drop_points:.2f} points of {rules.accuracy}{p}, {allowed}"
    if measured.clear_bound is None and measured.accuracy is None:
        yield "is never sure of a label (it looks untrained); pass --eval to judge it by accuracy"
    if measured.clear_bound is not None and measured.clear_bound < bounds.gate_min_agreement:
        found = f"{measured.clear_agreement:.2%} of {measured.clear_texts} {rules.clear_texts}"
        needed = f"needs {bounds.gate_min_agreement:.2%} (TANDEM_GATE_MIN_AGREEMENT)"
        yield f"{rules.claim} for {found}, of all such texts for {measured.clear_bound:.2%} at most, {needed}"
    if measured.accuracy is not None and _floor_reached(measured) < bounds.gate_min_labelled_agreement:
        needed = f"needs {bounds.gate_min_labelled_agreement:.2%} (TANDEM_GATE_MIN_LABELLED_AGREEMENT)"
        yield f"{rules.claim} for {measured.agreement:.2%} of {measured.texts} labelled texts, {needed}"


def _lost(measured: Parity, bounds: GateSettings) -> bool:
    """Whether accuracy is lost significantly and beyond the bound. A rank correlation has no McNemar test: the bound
    alone counts."""
    drop = measured.accuracy_drop_points or 0.0
    significant = measured.loss_p is None or measured.loss_p <= SIGNIFICANT_LOSS
    # The tolerance is for rounding: shares of texts are not exact in binary.
    return significant and drop > bounds.gate_max_accuracy_drop + 1e-9


def _floor_reached(measured: Parity) -> float:
    """Agreement on labelled texts: their share, or the upper bound of a share of few texts."""
    if measured.labelled_clear >= MIN_CLEAR:
        return measured.agreement
    return wilson_upper(round(measured.agreement * measured.texts), measured.texts)

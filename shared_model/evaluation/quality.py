"""Compares fp32's accuracy on labelled texts with a minimum, chance and the active release. Pure."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from shared_model.evaluation import calibration, parity
from shared_model.evaluation.agreement import RULES, Bools, Truth
from shared_model.evaluation.calibration import Calibration, Folds
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.output import Floats, OutputKind, OutputSpec

#: Significance level of the statistical tests.
_SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Baseline:
    """The active release's fp32 on the same texts. `right`: by text; None for a regression."""

    release: str
    accuracy: float
    right: Bools | None


@dataclass(frozen=True)
class Quality:
    """`accuracy`: fp32's, by the `measure` of its kind of output; a share, not percent.

    `chance`: accuracy of always giving the file's most frequent answer; `chance_p`: probability of reaching `accuracy`
    by chance. `active_accuracy`: the active release's on these texts, None if it was not compared; `active_p`: p-value
    of McNemar's test of the two. `calibration`: None for outputs without probabilities.
    """

    measure: str
    texts: int
    accuracy: float
    chance: float
    chance_p: float
    active: str = ""
    active_accuracy: float | None = None
    active_p: float | None = None
    failures: tuple[str, ...] = ()
    calibration: Calibration | None = None

    @property
    def active_drop_points(self) -> float | None:
        """Percentage points of accuracy lost against the active release; negative where this one is better."""
        return None if self.active_accuracy is None else (self.active_accuracy - self.accuracy) * 100

    def in_words(self) -> Iterator[str]:
        """A line for each comparison."""
        yield (
            f"{self.measure} of fp32 on {self.texts} labelled texts: {self.accuracy:.2%}; chance: {self.chance:.2%} "
            f"(p {self.chance_p:.3f})"
        )
        if self.active_accuracy is not None:
            p = "" if self.active_p is None else f" (McNemar p of the difference {self.active_p:.3f})"
            yield f"active release {self.active} on these texts: {self.active_accuracy:.2%}{p}"

    def to_document(self) -> dict[str, Any]:
        return asdict(self)


def baseline(release: str, output: OutputSpec, scores: Floats, truth: Truth) -> Baseline:
    rules = RULES[output.kind]
    right = rules.right(scores, truth) if rules.right else None
    return Baseline(release, parity.accuracy(rules, scores, truth), right)


def judge(
    output: OutputSpec,
    scores: Floats,
    truth: Truth,
    bounds: GateSettings,
    active: Baseline | None,
    folds: Folds | None = None,
) -> Quality:
    """`scores` are fp32's at temperature 1; `active` was measured on the same texts in the same order. `folds`: of the
    texts if the temperature was fitted on them."""
    rules = RULES[output.kind]
    right = rules.right(scores, truth) if rules.right else None
    accuracy = parity.accuracy(rules, scores, truth)
    chance, chance_p = _chance(output, truth, right, accuracy)
    measured = Quality(rules.accuracy, len(scores), accuracy, chance, chance_p)
    if output.ranked:
        measured = replace(measured, calibration=calibration.measure(output, scores, truth, folds))
    if active:
        p = None if right is None or active.right is None else parity.mcnemar_p(right, active.right)
        measured = replace(measured, active=active.release, active_accuracy=active.accuracy, active_p=p)
    return replace(measured, failures=tuple(_failures(measured, bounds)))


def _chance(output: OutputSpec, truth: Truth, right: Bools | None, accuracy: float) -> tuple[float, float]:
    """The accuracy of chance, and its probability of reaching `accuracy` or more."""
    from scipy.stats import binomtest, norm

    if right is None:
        # The rank correlation of independent values is about normal around 0 with variance 1 / (n - 1).
        return 0.0, float(norm.sf(accuracy * np.sqrt(max(len(truth) - 1, 0))))
    counts = Counter(np.asarray(row).tobytes() for row in truth)
    share = max(counts.values()) / len(truth)
    if len(counts) == 1:
        # With one answer throughout, always giving it would be right every time: use one label in k instead.
        share = 1 / output.width if output.kind is OutputKind.SINGLE_LABEL else 0.5**output.width
    return share, float(binomtest(int(right.sum()), len(right), share, alternative="greater").pvalue)


def _failures(measured: Quality, bounds: GateSettings) -> Iterator[str]:
    reached = f"fp32 reaches {measured.accuracy:.2%} {measured.measure} on {measured.texts} labelled texts"
    if bounds.gate_min_accuracy and measured.accuracy < bounds.gate_min_accuracy:
        yield f"{reached}, needs {bounds.gate_min_accuracy:.2%} (TANDEM_GATE_MIN_ACCURACY)"
    if bounds.gate_beat_chance and measured.chance_p >= _SIGNIFICANT:
        yield (
            f"{reached}, not clearly more than chance, {measured.chance:.2%} (p {measured.chance_p:.3f}, needs less "
            f"than {_SIGNIFICANT}; TANDEM_GATE_BEAT_CHANCE)"
        )
    drop, p = measured.active_drop_points, measured.active_p
    if drop is not None and p is not None and p < _SIGNIFICANT and drop > bounds.gate_max_active_drop + 1e-9:
        yield (
            f"{reached}, {drop:.2f} points less than the active release {measured.active} (p {p:.3f}), may be "
            f"{bounds.gate_max_active_drop:g} (TANDEM_GATE_MAX_ACTIVE_DROP)"
        )

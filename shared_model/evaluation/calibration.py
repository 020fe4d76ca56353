"""Fits the temperature of an output's probabilities, and measures how far they are from observed shares. Pure.

All scores are fp32's at temperature 1, (texts, width), of labelled texts. Needs scipy, which serving processes lack.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shared_model.encoding import Text
from shared_model.errors import BadInput
from shared_model.evaluation.agreement import RULES, Bools, Truth
from shared_model.evaluation.significance import wilson_lower
from shared_model.output import Floats, OutputKind, OutputSpec

#: Bins of equal width, and the draws and seed of the error that remains by chance.
BINS, _DRAWS, _SEED = 15, 2_000, 1
FOLDS = 5
#: Fewest labelled texts that a temperature is fitted on.
MIN_TEXTS = 100
#: The logarithm of a temperature lies within this distance of 0. Texts on which the best one is at the end do not
#: determine it: for example, all of them are answered right.
_MOST_LOG, _AT_END = 3.0, 0.01
#: Decimals of a temperature, far more precise than its estimate, and the thresholds that a target precision chooses of.
_DECIMALS = 3
_THRESHOLDS = np.arange(1, 1001) / 1000
#: Shares of texts, the most confident ones, for which a report tells the accuracy.
_COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.25)

Folds = NDArray[np.int64]
Probabilities = NDArray[np.float64]


@dataclass(frozen=True)
class Abstain:
    """When answers abstain: `below` a confidence, or below the least one from which on the share `precision` of answers
    is right, and `on` labels that stand for no answer; with none of them, never."""

    below: float | None = None
    precision: float | None = None
    on: tuple[str, ...] = ()


NEVER = Abstain()


@dataclass(frozen=True)
class Bin:
    """Probabilities from `low` up to the next bin's: their mean, `confidence`, and `accuracy`, the share that came
    true. `count`: labels of texts that are in the bin."""

    low: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Covered:
    """Answered texts, the least `confidence` among them: their share, `coverage`, and `accuracy`, the share answered
    right."""

    confidence: float
    coverage: float
    accuracy: float


@dataclass(frozen=True)
class Calibration:
    """The probabilities of fp32 on labelled texts. ECE: expected calibration error over `BINS` bins.

    `ece_before`: at temperature 1; `ece_after`, `bins` and `curve`: at `temperature`, or, if `cross_fitted`, each text
    at the temperature of the other folds. `ece_perfect`: 95th percentile of the ECE of a model with these probabilities
    that is perfectly calibrated. `abstains`: when answers do, in words, and `answered`: those that do not.
    """

    temperature: float
    cross_fitted: bool
    texts: int
    ece_before: float
    ece_after: float
    ece_perfect: float
    bins: tuple[Bin, ...]
    curve: tuple[Covered, ...]
    abstains: str = "never"
    answered: Covered | None = None

    def in_words(self) -> Iterator[str]:
        calibrated = f"no temperature was fitted, {MIN_TEXTS} labelled texts are needed"
        if self.cross_fitted or self.temperature != 1:
            how = f" (cross-fitted over {FOLDS} folds)" if self.cross_fitted else ""
            calibrated = f"{self.ece_after:.4f} at temperature {self.temperature:g}{how}"
        yield (
            f"expected calibration error of fp32's probabilities: {self.ece_before:.4f} uncalibrated, {calibrated}; a "
            f"perfectly calibrated model would show up to {self.ece_perfect:.4f} (95th percentile)"
        )
        if self.answered:
            yield (
                f"abstains {self.abstains}: {self.answered.coverage:.2%} of these texts are answered, "
                f"{self.answered.accuracy:.2%} of them right"
            )


def fit(
    output: OutputSpec, scores: Floats, truth: Truth | None, texts: Sequence[Text], abstain: Abstain = NEVER
) -> tuple[OutputSpec, Folds | None]:
    """The output with its temperature and threshold, and the folds of the texts if a temperature was fitted: that needs
    MIN_TEXTS labelled ones. Raises: BadInput for a threshold, a precision or labels that cannot be."""
    if not output.ranked:
        if abstain != NEVER:
            raise BadInput("--abstain-below", f"needs probabilities; {output.kind} output has none")
        return output, None
    try:
        output, folds = replace(output, abstain_on=abstain.on), None
    except ValueError as error:
        raise BadInput("--abstain-on", str(error)) from error
    if truth is not None and len(texts) >= MIN_TEXTS:
        folds = folds_of(texts)
        output = replace(output, temperature=fit_temperature(output, scores, truth))
    if abstain.precision is None:
        return replace(output, abstain_below=abstain.below), folds
    if truth is None or folds is None:
        raise BadInput("--abstain-precision", f"needs {MIN_TEXTS} labelled texts or more (--eval)")
    threshold, best = threshold_for(output, scores, truth, folds, abstain.precision)
    if threshold is None:
        reached = f"{best:.2%} is the most that any threshold reaches on these {len(texts)} texts"
        raise BadInput(
            "--abstain-precision", f"{abstain.precision:.2%} cannot be shown: {reached} (Wilson lower bound)"
        )
    return replace(output, abstain_below=threshold), folds


def folds_of(texts: Sequence[Text]) -> Folds:
    """The fold of each text, 0 to FOLDS - 1, by its hash: equal texts share a fold, whatever the order."""
    hashes = (hashlib.sha256(json.dumps(text).encode()).digest() for text in texts)
    return np.array([int.from_bytes(each[:8], "big") % FOLDS for each in hashes], np.int64)


def fit_temperature(output: OutputSpec, scores: Floats, truth: Truth) -> float:
    """The temperature of the least negative log-likelihood; 1 if these texts do not determine it."""
    from scipy.optimize import minimize_scalar

    if not len(scores):
        return 1.0
    raw = output.raw(scores).astype(np.float64)
    found = minimize_scalar(
        lambda log: _loss(output.kind, raw / math.exp(log), truth),
        bounds=(-_MOST_LOG, _MOST_LOG),
        method="bounded",
        options={"xatol": 1e-4},
    )
    return 1.0 if abs(found.x) > _MOST_LOG - _AT_END else round(math.exp(found.x), _DECIMALS)


def cross_fitted(output: OutputSpec, scores: Floats, truth: Truth, folds: Folds) -> Floats:
    """Each text's scores at the temperature that the texts of the other folds fit."""
    calibrated = scores.copy()
    for fold in range(FOLDS):
        own, others = folds == fold, folds != fold
        temperature = fit_temperature(output, scores[others], truth[others])
        calibrated[own] = replace(output, temperature=temperature).recalibrated(scores[own])
    return calibrated


def measure(output: OutputSpec, scores: Floats, truth: Truth, folds: Folds | None = None) -> Calibration:
    """`folds`: of the texts if `output`'s temperature was fitted on them."""
    fitted = folds is not None
    calibrated = output.recalibrated(scores) if folds is None else cross_fitted(output, scores, truth, folds)
    probabilities, true = _claims(output.kind, calibrated, truth)
    confidence, right = output.confidence(calibrated), _right(output, scores, truth)
    answered = ~output.abstained(calibrated) if output.abstains else None
    ordered = np.sort(confidence)[::-1]
    thresholds = [float(ordered[max(round(share * len(ordered)), 1) - 1]) for share in _COVERAGES]
    return Calibration(
        temperature=output.temperature,
        cross_fitted=fitted,
        texts=len(scores),
        ece_before=ece(*_claims(output.kind, scores, truth)),
        ece_after=ece(probabilities, true),
        ece_perfect=perfect_ece(probabilities),
        bins=_bins(probabilities, true),
        curve=tuple(_covered(confidence, right, confidence >= least) for least in thresholds),
        abstains=output.abstaining,
        answered=None if answered is None else _covered(confidence, right, answered),
    )


def threshold_for(
    output: OutputSpec, scores: Floats, truth: Truth, folds: Folds, precision: float
) -> tuple[float | None, float]:
    """The least confidence from which on answers are right with this precision, by the one-sided 95 % Wilson lower
    bound, None if none is; and the best lower bound of all thresholds."""
    confidence = output.confidence(cross_fitted(output, scores, truth, folds))
    right = _right(output, scores, truth)
    answered = (right[confidence >= threshold] for threshold in _THRESHOLDS.astype(np.float32))
    bounds = [wilson_lower(int(it.sum()), len(it)) if len(it) else 0.0 for it in answered]
    reached = [float(it) for it, bound in zip(_THRESHOLDS, bounds, strict=True) if bound >= precision]
    return (reached[0] if reached else None), max(bounds)


def ece(probabilities: Probabilities, true: Bools) -> float:
    """Expected calibration error: the mean distance, weighted by count, of each bin's mean probability from its share
    of true ones."""
    places = _places(probabilities)
    apart = np.bincount(places, probabilities - true, BINS)
    return float(np.abs(apart).sum() / len(probabilities))


def perfect_ece(probabilities: Probabilities) -> float:
    """95th percentile of the ECE if each probability were exact. Within a bin they are taken as equal, by which the
    spread is overstated slightly."""
    places = _places(probabilities)
    counts, sums = np.bincount(places, minlength=BINS), np.bincount(places, probabilities, BINS)
    means = np.clip(sums / np.maximum(counts, 1), 0, 1)
    drawn = np.random.default_rng(_SEED).binomial(counts, means, (_DRAWS, BINS))
    return float(np.quantile(np.abs(drawn - sums).sum(axis=1) / len(probabilities), 0.95))


def _loss(kind: OutputKind, raw: Floats | Probabilities, truth: Truth) -> float:
    """Mean negative log-likelihood of the truth; multi-label: of each label by itself."""
    if kind is OutputKind.MULTI_LABEL:
        return float((np.logaddexp(0, raw) - raw * truth).mean())
    shifted = raw - raw.max(axis=1, keepdims=True)
    of_truth = shifted[np.arange(len(raw)), truth]
    return float((np.log(np.exp(shifted).sum(axis=1)) - of_truth).mean())


def _claims(kind: OutputKind, scores: Floats, truth: Truth) -> tuple[Probabilities, Bools]:
    """Probabilities and whether each came true: of every text's best label, or multi-label of all labels."""
    if kind is OutputKind.MULTI_LABEL:
        return scores.ravel().astype(np.float64), np.asarray(truth, bool).ravel()
    return scores.max(axis=1).astype(np.float64), scores.argmax(axis=1) == truth


def _right(output: OutputSpec, scores: Floats, truth: Truth) -> Bools:
    right = RULES[output.kind].right
    if right is None:
        raise ValueError(f"{output.kind} output has no probabilities")
    return right(scores, truth)


def _places(probabilities: Probabilities) -> NDArray[np.int64]:
    """The bin of each probability; 1 is in the last."""
    return np.minimum((probabilities * BINS).astype(np.int64), BINS - 1)


def _bins(probabilities: Probabilities, true: Bools) -> tuple[Bin, ...]:
    """Those that hold any."""
    places = _places(probabilities)
    return tuple(
        Bin(number / BINS, int(held.sum()), float(probabilities[held].mean()), float(true[held].mean()))
        for number in range(BINS)
        if (held := places == number).any()
    )


def _covered(confidence: Floats, right: Bools, held: Bools) -> Covered:
    if not held.any():
        return Covered(1.0, 0.0, 0.0)
    return Covered(float(confidence[held].min()), float(held.mean()), float(right[held].mean()))

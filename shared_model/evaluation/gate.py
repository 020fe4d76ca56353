"""The gate: runs variants on evaluation texts, compares them with fp32, times them, and reports failures."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shared_model import devices
from shared_model.encoding import Encoder, Encoding, InputSpec, collate
from shared_model.engine import TAU, Engine
from shared_model.errors import ReleaseError, TandemError
from shared_model.evaluation import benchmark, calibration, parity, quality, report, verdict
from shared_model.evaluation.agreement import RULES, Bools
from shared_model.evaluation.calibration import NEVER, Abstain, Folds
from shared_model.evaluation.corpora import GateTexts
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.evaluation.parity import Parity
from shared_model.evaluation.quality import Baseline, Quality
from shared_model.evaluation.significance import MIN_CLEAR
from shared_model.evaluation.verdict import Added, ReleaseReport, Tried, Verdict
from shared_model.output import Floats, OutputKind, OutputSpec
from shared_model.releases.manifest import Variant
from shared_model.releases.store import Release
from shared_model.storage import one_line
from shared_model.types import Device, Precision

Say = Callable[[str], None]
#: Opens one variant with a number of threads.
Open = Callable[[Variant, int], Engine]
#: Texts that are scored alone too, where a temperature may enlarge the differences between batches.
_ALONE = 16


@dataclass(frozen=True)
class Evaluator:
    """Evaluates variants of one model on one set of texts. `added`: sets, or the first texts of sets, in its reserve
    that are compared too. `reference`: fp32's scores of all of them (texts, width), as all scores here at temperature
    1. `folds`: of its own texts, if the temperature of `output` was fitted on them."""

    output: OutputSpec
    reads: InputSpec
    texts: GateTexts
    encodings: Sequence[Encoding]
    reference: Floats
    bounds: GateSettings
    added: tuple[GateTexts, ...] = ()
    folds: Folds | None = None

    @property
    def shown(self) -> list[str]:
        """How a report names each text."""
        return [name for texts in (self.texts, *self.added) for name in texts.shown]

    def parity(self, scores: Floats) -> Parity:
        own = len(self.texts.texts)
        return parity.judge(self.output, scores, self.reference, self.texts.truth, self.bounds, own)

    def quality(self, active: Baseline | None = None) -> Quality | None:
        """The quality of fp32; None if the texts are not labelled."""
        if self.texts.truth is None:
            return None
        own = self.reference[: len(self.texts.truth)]
        return quality.judge(self.output, own, self.texts.truth, self.bounds, active, self.folds)

    def calibrated(self, abstain: Abstain = NEVER) -> "Evaluator":
        """With the temperature that its labelled texts fit, and a threshold to abstain below. Raises: BadInput."""
        own = self.reference[: len(self.texts.texts)]
        output, folds = calibration.fit(self.output, own, self.texts.truth, self.texts.texts, abstain)
        return replace(self, output=output, folds=folds)

    def score(self, engine: Engine, what: str) -> Floats:
        """An engine's scores of all texts. Raises: ValueError for another shape; any exception of its framework."""
        return benchmark.score_all(engine, self.output, self.encodings, what)


def make_evaluator(
    encoder: Encoder, output: OutputSpec, texts: GateTexts, bounds: GateSettings, fp32: Variant, open_variant: Open
) -> Evaluator:
    """Compute fp32's scores, the reference, and add texts of the reserve while it is certain on fewer than MIN_CLEAR.
    Raises: ReleaseError if fp32 cannot run."""
    clear = RULES[output.kind].clear
    encodings, reference = list[Encoding](), np.empty((0, output.width), np.float32)
    compared: list[GateTexts] = []
    try:
        with contextlib.closing(open_variant(fp32, devices.cores())) as engine:
            for found in (texts, *texts.reserve):
                missing = MIN_CLEAR - int(clear(reference).sum())
                if missing <= 0:
                    break
                encoded = encoder.encode_many(found.texts)
                scores = benchmark.score_all(engine, output, encoded, f"scoring {fp32}")
                taken = _enough(clear(scores), missing) if compared else len(encoded)
                encodings += encoded[:taken]
                reference = np.concatenate([reference, scores[:taken]])
                compared.append(found.first(taken) if compared else found)
    except TandemError:
        raise
    except Exception as error:  # frameworks raise anything
        raise ReleaseError(f"{fp32} cannot run: {one_line(error)}") from error
    return Evaluator(output, encoder.reads, texts, encodings, reference, bounds, tuple(compared[1:]))


def _enough(clear: Bools, missing: int) -> int:
    """Number of first texts that hold `missing` clear ones; all if they hold fewer."""
    return int(np.searchsorted(np.cumsum(clear), missing)) + 1 if clear.sum() >= missing else len(clear)


def evaluate_release(
    release: Release,
    evaluator: Evaluator,
    say: Say,
    scored: Mapping[Precision, Floats] | None = None,
    tried: Sequence[Tried] = (),
    active: Baseline | None = None,
    calibration: str = "",
) -> ReleaseReport:
    """Evaluate every variant whose device this machine has, and write the report beside the release.

    `scored`: known scores of variants on the evaluator's texts. `tried`: recipes that the builder tried. `active`: the
    active release on the same texts. `calibration`: description of the texts that INT8 is calibrated on.
    """
    known = {Precision.FP32: evaluator.reference, **(scored or {})}
    variants = release.manifest.variants
    here = [variant for variant in variants if variant.device in (Device.CPU, devices.detect())]
    verdicts = []
    for variant in here:
        say(f"gate: {variant}: comparing on {len(evaluator.encodings)} texts, timing {len(benchmark.SHAPES)} shapes")
        scores = known.get(variant.precision) if variant.device is Device.CPU else None
        verdicts.append(evaluate_variant(evaluator, variant, release.size(variant), release_opener(release), scores))
    if not any(variant.precision is Precision.INT8 for variant in variants):
        why = next((failure for one in tried for failure in one.failures), "the release holds none")
        verdicts.append(Verdict(Precision.INT8.value, Device.CPU.value, (f"could not be made: {why}",), 0))
    measured = evaluator.quality(active)
    judged = ReleaseReport(
        release=release.id,
        output=release.output.kind.value,
        quantisation=release.manifest.quantisation,
        tried=tuple(tried),
        evaluation=evaluator.texts.source,
        evaluation_sha256=evaluator.texts.sha256,
        calibration_sha256=release.manifest.calibration,
        variants=tuple(verdicts),
        unproven=tuple(str(variant) for variant in variants if variant not in here),
        quality=measured,
        calibration=calibration,
        added=tuple(Added(found.source, len(found.texts), found.sha256) for found in evaluator.added),
        failures=measured.failures if measured else _not_measured(evaluator),
    )
    report.write(release, judged)
    return judged


def evaluate_variant(
    evaluator: Evaluator,
    variant: Variant,
    size_bytes: int,
    open_variant: Open,
    scores: Floats | None = None,
    widths: Sequence[int] = (),
) -> Verdict:
    """One variant's verdict, also if it cannot run. `widths`: numbers of threads to time it with, the first of which
    is compared with the lane's budget; default: all cores, then one. Raises: ReleaseError if its files are damaged."""
    if not widths:
        widths = tuple(dict.fromkeys((devices.cores(), 1))) if variant.device is Device.CPU else (1,)
    try:
        return _verdict(evaluator, variant, size_bytes, open_variant, scores, widths)
    except TandemError:
        raise
    except Exception as error:  # noqa: BLE001 - frameworks raise anything, and a release is more than one variant
        failure = f"cannot run: {one_line(error)}"
        return Verdict(variant.precision.value, variant.device.value, (failure,), size_bytes)


def release_evaluator(release: Release, texts: GateTexts, bounds: GateSettings) -> Evaluator:
    """Raises: ReleaseError if the release is damaged, or its fp32 variant cannot run here."""
    fp32 = release.manifest.variant(Precision.FP32, Device.CPU)
    return make_evaluator(release.encoder(), release.output, texts, bounds, fp32, release_opener(release))


def release_opener(release: Release) -> Open:
    return lambda variant, threads: release.engine(variant.precision, variant.device, threads)


def _verdict(
    evaluator: Evaluator,
    variant: Variant,
    size_bytes: int,
    open_variant: Open,
    scores: Floats | None,
    widths: Sequence[int],
) -> Verdict:
    budget = benchmark.budget_of(variant.precision, evaluator.bounds)
    with contextlib.closing(open_variant(variant, widths[0])) as engine:
        scores = evaluator.score(engine, f"scoring {variant}") if scores is None else scores
        latency = benchmark.latency_profile(engine, evaluator.reads, f"timing {variant}")
        slow = benchmark.over_budget(engine, evaluator.reads, budget) if budget else None
        compiled, unstable = engine.precision.value, _unstable(evaluator, engine, scores)
    for threads in widths[1:]:
        with contextlib.closing(open_variant(variant, threads)) as engine:
            latency += benchmark.latency_profile(engine, evaluator.reads, f"timing {variant} on {threads}")
    compared, shown = evaluator.parity(scores), evaluator.shown
    failures = (*compared.failures, *unstable)
    return Verdict(
        precision=variant.precision.value,
        device=variant.device.value,
        failures=failures,
        size_bytes=size_bytes,
        compiled=compiled,
        parity=compared,
        latency=latency,
        confusion=verdict.confusion(evaluator.output, scores, evaluator.reference),
        examples=verdict.examples(evaluator.output, scores, evaluator.reference, shown) if failures else (),
        slow_here=slow,
    )


def _unstable(evaluator: Evaluator, engine: Engine, scores: Floats) -> tuple[str, ...]:
    """A failure if, at the fitted temperature, a text's probabilities alone and in a batch differ by more than τ."""
    output, asked = evaluator.output, evaluator.encodings[:_ALONE]
    if output.temperature == 1:
        return ()
    alone = np.concatenate([output.uncalibrated.scores(engine.score(collate([encoding]))) for encoding in asked])
    apart = float(np.abs(output.recalibrated(alone) - output.recalibrated(scores[: len(alone)])).max())
    if apart <= TAU[engine.precision]:
        return ()
    found = f"at temperature {output.temperature:g} probabilities alone and in a batch differ by {apart:.4f}"
    return (f"is not stable: {found}, may differ by {TAU[engine.precision]:g}",)


def _not_measured(evaluator: Evaluator) -> tuple[str, ...]:
    """A failure if a minimum accuracy is set but no text is labelled."""
    floor = evaluator.bounds.gate_min_accuracy
    if not floor or evaluator.output.kind is OutputKind.EMBEDDING:
        return ()
    return (f"needs {floor:.2%} accuracy (TANDEM_GATE_MIN_ACCURACY), but no text is labelled: pass --eval",)


def baseline(release: Release, texts: GateTexts, bounds: GateSettings) -> Baseline | None:
    """The accuracy of a release on labelled texts; None without labels. Raises: as `release_evaluator`."""
    if texts.truth is None:
        return None
    evaluator = release_evaluator(release, texts, bounds)
    return quality.baseline(release.id, release.output, evaluator.reference, texts.truth)

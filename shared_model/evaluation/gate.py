"""The gate: runs variants on evaluation texts, compares them with fp32, times them, and reports failures."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shared_model import devices
from shared_model.encoding import Encoder, Encoding, InputSpec, collate
from shared_model.engine import TAU, Engine
from shared_model.errors import ReleaseError, TandemError
from shared_model.evaluation import benchmark, calibration, parity, quality, report, verdict
from shared_model.evaluation.calibration import NEVER, Abstain, Folds
from shared_model.evaluation.corpora import GENERATED, GateTexts
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.evaluation.parity import Parity
from shared_model.evaluation.quality import Baseline, Quality
from shared_model.evaluation.scored_texts import ScoredTexts
from shared_model.evaluation.verdict import Added, Compared, HeadReport, HeadVerdict, ReleaseReport, Tried, Verdict
from shared_model.heads import DEFAULT_HEAD, Heads, HeadSpec
from shared_model.output import Floats, OutputKind, OutputSpec
from shared_model.releases.manifest import Variant
from shared_model.releases.store import Release
from shared_model.storage import one_line
from shared_model.types import WHOLE, Device, Precision, Spread

Say = Callable[[str], None]
#: Opens one variant with a number of threads.
Open = Callable[[Variant, int], Engine]
#: Texts that are scored alone too, where a temperature may enlarge the differences between batches.
_ALONE = 16


@dataclass(frozen=True)
class Evaluator:
    """Evaluates variants of one model on one set of texts. `added`: sets, or the first texts of sets, in its reserve
    that are compared too.

    It is that of the first head, `further` are those of the others. `encodings`: the texts of all heads, each once;
    `reference`: fp32's scores of them (texts, width of all heads), as all scores here at temperature 1. A head compares
    its columns of such scores, from `first_column` on, in the `rows` of its own texts; None: in all. `folds`: of its
    own texts, if the temperature of `output` was fitted on them.
    """

    output: OutputSpec
    reads: InputSpec
    texts: GateTexts
    encodings: Sequence[Encoding]
    reference: Floats
    bounds: GateSettings
    added: tuple[GateTexts, ...] = ()
    head: str = DEFAULT_HEAD
    first_column: int = 0
    rows: NDArray[np.int64] | None = None
    folds: Folds | None = None
    further: "tuple[Evaluator, ...]" = ()

    @property
    def shown(self) -> list[str]:
        """How a report names each text."""
        return [name for texts in (self.texts, *self.added) for name in texts.shown]

    @property
    def heads(self) -> "tuple[Evaluator, ...]":
        """That of each head, this one first."""
        return (self, *self.further)

    @property
    def all_heads(self) -> Heads:
        return Heads.of(self.output, self.head, (HeadSpec(it.head, it.output) for it in self.further))

    @property
    def columns(self) -> slice:
        """The place of this head's scores among those of all heads."""
        return slice(self.first_column, self.first_column + self.output.width)

    def own(self, scores: Floats) -> Floats:
        """This head's scores of its own texts, of all scores of a variant."""
        return scores[slice(None) if self.rows is None else self.rows, self.columns]

    def parity(self, scores: Floats) -> Parity:
        """`scores`: all of a variant."""
        own = len(self.texts.texts)
        return parity.judge(self.output, self.own(scores), self.own(self.reference), self.texts.truth, self.bounds, own)

    def compare(self, scores: Floats) -> Compared:
        """Each head's parity. `scores`: all of a variant."""
        return Compared(tuple((it.head, it.parity(scores)) for it in self.heads))

    def quality(self, active: Baseline | None = None) -> Quality | None:
        """The quality of fp32; None if the texts are not labelled."""
        if self.texts.truth is None:
            return None
        own = self.own(self.reference)[: len(self.texts.truth)]
        return quality.judge(self.output, own, self.texts.truth, self.bounds, active, self.folds)

    def calibrated(self, abstain: Mapping[str, Abstain]) -> "Evaluator":
        """Each head with the temperature that its labelled texts fit. `abstain`: when its answers abstain, by name;
        never where it is not named. Raises: BadInput for a head that cannot."""
        first, *further = (it._calibrated(abstain.get(it.head, NEVER)) for it in self.heads)
        return replace(first, further=tuple(further))

    def _calibrated(self, abstain: Abstain) -> "Evaluator":
        own = self.own(self.reference)[: len(self.texts.texts)]
        output, folds = calibration.fit(self.output, own, self.texts.truth, self.texts.texts, abstain)
        return replace(self, output=output, folds=folds)

    def score(self, engine: Engine, what: str) -> Floats:
        """An engine's scores of all texts, those of all heads side by side. Raises: ValueError for another shape; any
        exception of its framework."""
        return benchmark.score_all(engine, self.all_heads, self.encodings, what)


def make_evaluator(
    encoder: Encoder, heads: Heads, texts: GateTexts, bounds: GateSettings, fp32: Variant, open_variant: Open
) -> Evaluator:
    """Compute fp32's scores, the reference, and for each head add texts of its reserve while it is certain on fewer
    than MIN_CLEAR. Raises: ReleaseError if fp32 cannot run."""
    try:
        with contextlib.closing(open_variant(fp32, devices.cores())) as engine:
            scored = ScoredTexts(encoder, engine, heads, f"scoring {fp32}")
            chosen = [
                scored.chosen(spec, columns, texts if spec is heads.first else texts.of_head(spec.name))
                for spec, columns in zip(heads.specs, heads.columns, strict=True)
            ]
    except TandemError:
        raise
    except Exception as error:  # frameworks raise anything
        raise ReleaseError(f"{fp32} cannot run: {one_line(error)}") from error
    used = np.unique(np.concatenate([rows for _, rows in chosen]))
    encodings = [scored.encodings[row] for row in used]
    first, *further = [
        Evaluator(
            spec.output,
            encoder.reads,
            compared[0],
            encodings,
            scored.scores[used],
            bounds,
            tuple(compared[1:]),
            spec.name,
            columns.start,
            np.searchsorted(used, rows),
        )
        for spec, columns, (compared, rows) in zip(heads.specs, heads.columns, chosen, strict=True)
    ]
    return replace(first, further=tuple(further))


def evaluate_release(
    release: Release,
    evaluator: Evaluator,
    say: Say,
    scored: Mapping[Precision, Floats] | None = None,
    tried: Sequence[Tried] = (),
    active: Mapping[str, Baseline] | None = None,
    calibration: str = "",
) -> ReleaseReport:
    """Evaluate every variant whose device this machine has, and write the report beside the release.

    `scored`: known scores of variants on the evaluator's texts. `tried`: recipes that the builder tried. `active`: the
    active release on the same texts, by head. `calibration`: description of the texts that INT8 is calibrated on.
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
    first, *further = (_head_report(it, (active or {}).get(it.head)) for it in evaluator.heads)
    judged = ReleaseReport(
        release=release.id,
        output=release.output.kind.value,
        quantisation=release.manifest.quantisation,
        tried=tuple(tried),
        evaluation=first.evaluation,
        evaluation_sha256=first.evaluation_sha256,
        calibration_sha256=release.manifest.calibration,
        variants=tuple(verdicts),
        unproven=tuple(str(variant) for variant in variants if variant not in here),
        quality=first.quality,
        calibration=calibration,
        added=first.added,
        failures=tuple(_release_failures(evaluator, (first, *further))),
        head=first.head,
        heads=tuple(further),
    )
    report.write(release, judged)
    return judged


def _head_report(evaluator: Evaluator, active: Baseline | None) -> HeadReport:
    return HeadReport(
        head=evaluator.head,
        output=evaluator.output.kind.value,
        evaluation=evaluator.texts.source,
        evaluation_sha256=evaluator.texts.sha256,
        quality=evaluator.quality(active),
        added=tuple(Added(found.source, len(found.texts), found.sha256) for found in evaluator.added),
    )


def _release_failures(evaluator: Evaluator, reports: Sequence[HeadReport]) -> Iterator[str]:
    """Failures of the model itself. A minimum accuracy needs labelled texts of at least one head."""
    for found in reports:
        for failure in found.quality.failures if found.quality else ():
            yield verdict.of_head(failure, found.head if evaluator.further else "")
    floor, embedding = evaluator.bounds.gate_min_accuracy, evaluator.output.kind is OutputKind.EMBEDDING
    if floor and not embedding and not any(found.quality for found in reports):
        yield f"needs {floor:.2%} accuracy (TANDEM_GATE_MIN_ACCURACY), but no text is labelled: pass --eval"


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
    return make_evaluator(release.encoder(), release.heads, texts, bounds, fp32, release_opener(release))


def release_opener(release: Release, spread: Spread = WHOLE) -> Open:
    return lambda variant, threads: release.engine(variant.precision, variant.device, threads, spread=spread)


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
        compiled, unstable = engine.precision.value, tuple(_unstable(evaluator, engine, scores))
    for threads in widths[1:]:
        with contextlib.closing(open_variant(variant, threads)) as engine:
            latency += benchmark.latency_profile(engine, evaluator.reads, f"timing {variant} on {threads}")
    compared = evaluator.compare(scores)
    failures = (*compared.failures, *unstable)
    first, *further = (
        _head_verdict(it, it.own(scores), measured, bool(failures))
        for it, (_, measured) in zip(evaluator.heads, compared.heads, strict=True)
    )
    return Verdict(
        precision=variant.precision.value,
        device=variant.device.value,
        failures=failures,
        size_bytes=size_bytes,
        compiled=compiled,
        parity=first.parity,
        latency=latency,
        confusion=first.confusion,
        examples=first.examples,
        heads=tuple(further),
        slow_here=slow,
    )


def _unstable(evaluator: Evaluator, engine: Engine, scores: Floats) -> Iterator[str]:
    """A failure of each head whose probabilities of a text, at the fitted temperature, differ by more than τ alone and
    in a batch."""
    calibrated = [it for it in evaluator.heads if it.output.temperature != 1]
    if not calibrated:
        return
    raw = np.concatenate([engine.score(collate([encoding])) for encoding in evaluator.encodings[:_ALONE]])
    alone, tau = evaluator.all_heads.uncalibrated.scores(raw), TAU[engine.precision]
    for it in calibrated:
        one, other = (it.output.recalibrated(found[: len(alone), it.columns]) for found in (alone, scores))
        if (apart := float(np.abs(one - other).max())) > tau:
            found = f"at temperature {it.output.temperature:g} probabilities alone and in a batch differ by {apart:.4f}"
            failure = f"is not stable: {found}, may differ by {tau:g}"
            yield verdict.of_head(failure, it.head if evaluator.further else "")


def _head_verdict(evaluator: Evaluator, scores: Floats, measured: Parity, refused: bool) -> HeadVerdict:
    """`scores`: of this head's texts (texts, width of the head)."""
    compared = evaluator.output, scores, evaluator.own(evaluator.reference)
    shown = verdict.examples(*compared, evaluator.shown) if refused else ()
    return HeadVerdict(evaluator.head, measured, verdict.confusion(*compared), shown)


def baselines(release: Release, texts: Mapping[str, GateTexts], bounds: GateSettings) -> dict[str, Baseline]:
    """The accuracy of a release's heads on their own labelled texts. Raises: as `release_evaluator`."""
    empty = GateTexts((), (), GENERATED, "")
    first, *others = (texts.get(spec.name, empty) for spec in release.heads.specs)
    by_head = dict(zip((spec.name for spec in release.heads.further), others, strict=True))
    evaluator = release_evaluator(release, replace(first, by_head=by_head), bounds)
    return {
        it.head: quality.baseline(release.id, it.output, it.own(it.reference)[: len(it.texts.truth)], it.texts.truth)
        for it in evaluator.heads
        if it.texts.truth is not None
    }

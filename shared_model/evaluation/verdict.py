"""The gate's verdicts on each variant and on the release, with examples."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from shared_model.evaluation import agreement, parity
from shared_model.evaluation.benchmark import Latency
from shared_model.evaluation.parity import Parity
from shared_model.evaluation.quality import Quality
from shared_model.heads import DEFAULT_HEAD
from shared_model.output import Floats, OutputSpec

_CONFUSIONS_KEPT, _EXAMPLES_KEPT = 10, 5


@dataclass(frozen=True)
class Confusion:
    """The reference names one label (multi-label: one set) and the variant another, on `texts` texts."""

    reference: str
    variant: str
    texts: int


@dataclass(frozen=True)
class Example:
    """A text on which a variant disagrees. `distance`: text with the difference, or the reference's certainty."""

    text: str
    reference: str
    variant: str
    distance: str


@dataclass(frozen=True)
class Compared:
    """The parity of each head of a variant, by name and in order. The variant passes if all heads do."""

    heads: tuple[tuple[str, Parity], ...]

    @property
    def failures(self) -> tuple[str, ...]:
        several = len(self.heads) > 1
        found = ((head, failure) for head, measured in self.heads for failure in measured.failures)
        return tuple(of_head(failure, head if several else "") for head, failure in found)

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def asked_agreement(self) -> float:
        """That of the head with the least, by which recipes are ranked."""
        return min(measured.asked_agreement for _, measured in self.heads)


@dataclass(frozen=True)
class HeadVerdict:
    """A further head of a variant, as `Verdict` has it of the first."""

    head: str
    parity: Parity
    confusion: tuple[Confusion, ...] = ()
    examples: tuple[Example, ...] = ()

    def to_document(self) -> dict[str, Any]:
        return {**self.parity.to_document(), **{k: v for k, v in asdict(self).items() if k != "parity"}}


@dataclass(frozen=True)
class Verdict:
    """One variant on this machine. It passed if it has no failures.

    `compiled`: the precision that the device ran, which may differ from the variant's. If the variant cannot run, it
    and `parity` are null. `confusion`: most frequent first. `examples`: disagreements of a refused variant. These three
    are of the first head; `heads`: of the others.
    `slow_here`: how it misses its lane's budget on this machine; no failure, because another machine may serve.
    """

    precision: str
    device: str
    failures: tuple[str, ...]
    size_bytes: int
    compiled: str | None = None
    parity: Parity | None = None
    latency: tuple[Latency, ...] = ()
    confusion: tuple[Confusion, ...] = ()
    examples: tuple[Example, ...] = ()
    heads: tuple[HeadVerdict, ...] = ()
    slow_here: str | None = None

    @property
    def name(self) -> str:
        return f"{self.precision}/{self.device}"

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def parities(self) -> tuple[Parity, ...]:
        """Of all heads; empty if the variant did not run."""
        return (self.parity, *(head.parity for head in self.heads)) if self.parity else ()

    def parity_of(self, head: str, first: str) -> Parity | None:
        """As one head; `first`: the name of the first."""
        return {first: self.parity, **{it.head: it.parity for it in self.heads}}.get(head)

    def to_document(self) -> dict[str, Any]:
        """A flat document: fields of `parity` beside the others, null if the variant did not run."""
        unknown = {field.name: None for field in fields(Parity)} | {"accuracy_drop_points": None}
        compared = self.parity.to_document() if self.parity else unknown
        heads = [head.to_document() for head in self.heads]
        own = {k: v for k, v in asdict(self).items() if k != "parity"}
        return {**compared, **own, "heads": heads, "passed": self.passed}


@dataclass(frozen=True)
class Tried:
    """A quantisation recipe and its outcome; `agreement`: the required one, None if the recipe did not run."""

    recipe: str
    agreement: float | None
    failures: tuple[str, ...]


@dataclass(frozen=True)
class Added:
    """Texts of another source that were compared too, for agreement alone: the own ones were clear too seldom."""

    source: str
    texts: int
    sha256: str


@dataclass(frozen=True)
class HeadReport:
    """One head, as `ReleaseReport` has it of the first."""

    head: str
    output: str
    evaluation: str
    evaluation_sha256: str
    quality: Quality | None = None
    added: tuple[Added, ...] = ()


@dataclass(frozen=True)
class ReleaseReport:
    """`output`: the kind of output. `quantisation`: the chosen recipe. `tried`: all recipes, in order.

    `evaluation`: source of the texts. `unproven`: variants whose device this machine lacks. `quality`: accuracy of the
    model if the texts are labelled. `failures`: those of the release itself, beside those of its variants.
    `calibration`: description of the texts that INT8 is calibrated on. `added`: texts beside those of the evaluation.
    `head`: name of the first head, whose output, evaluation, quality and added texts these are; `heads`: the others.
    """

    release: str
    output: str
    quantisation: str
    tried: tuple[Tried, ...]
    evaluation: str
    evaluation_sha256: str
    calibration_sha256: str
    variants: tuple[Verdict, ...]
    unproven: tuple[str, ...]
    quality: Quality | None = None
    failures: tuple[str, ...] = ()
    calibration: str = ""
    added: tuple[Added, ...] = ()
    head: str = DEFAULT_HEAD
    heads: tuple[HeadReport, ...] = ()

    @property
    def every_head(self) -> tuple[HeadReport, ...]:
        """The first head and the others."""
        own = (self.head, self.output, self.evaluation, self.evaluation_sha256, self.quality, self.added)
        return (HeadReport(*own), *self.heads)

    @property
    def passed(self) -> bool:
        return not self.failures and all(variant.passed for variant in self.variants)

    def to_document(self) -> dict[str, Any]:
        variants = [variant.to_document() for variant in self.variants]
        return {**asdict(self), "passed": self.passed, "variants": variants}


def of_head(failure: str, head: str) -> str:
    """A failure with the head that it is of; empty where there is only one."""
    return f"{failure}, as head {head}" if head else failure


def confusion(output: OutputSpec, scores: Floats, reference: Floats) -> tuple[Confusion, ...]:
    """The labels that a variant most often names instead of the reference's; empty for outputs without labels."""
    if not output.ranked:
        return ()
    rows = parity.disagreements(output, scores, reference)
    counts = Counter((agreement.name(reference[row], output), agreement.name(scores[row], output)) for row in rows)
    return tuple(Confusion(*pair, texts) for pair, texts in counts.most_common(_CONFUSIONS_KEPT))


def examples(output: OutputSpec, scores: Floats, reference: Floats, shown: Sequence[str]) -> tuple[Example, ...]:
    """The disagreements with the largest distance."""
    rules = agreement.RULES[output.kind]
    distance = rules.distance(scores, reference)
    return tuple(
        Example(
            shown[row],
            agreement.name(reference[row], output),
            agreement.name(scores[row], output),
            rules.distance_form.format(distance[row]),
        )
        for row in parity.disagreements(output, scores, reference)[:_EXAMPLES_KEPT]
    )

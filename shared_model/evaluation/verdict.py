"""What the gate says of each variant and of the release, and what shows why."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from shared_model.evaluation import agreement, parity
from shared_model.evaluation.benchmark import Latency
from shared_model.evaluation.parity import Parity
from shared_model.evaluation.quality import Quality
from shared_model.output import Floats, OutputSpec

_CONFUSIONS_KEPT, _EXAMPLES_KEPT = 10, 5


@dataclass(frozen=True)
class Confusion:
    """The reference names one label (of several: one set of labels) and the variant another, on `texts` texts."""

    reference: str
    variant: str
    texts: int


@dataclass(frozen=True)
class Example:
    """A text on which a variant disagrees. `distance` says in words by how much, or how sure the reference was."""

    text: str
    reference: str
    variant: str
    distance: str


@dataclass(frozen=True)
class Verdict:
    """One variant on this machine. It passed if nothing failed.

    `compiled` is the precision the device ran, which may differ from the variant's; it and `parity` are None where the
    variant cannot run. `confusion`: most frequent first. `examples`: of what was refused.
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

    @property
    def name(self) -> str:
        return f"{self.precision}/{self.device}"

    @property
    def passed(self) -> bool:
        return not self.failures

    def to_document(self) -> dict[str, Any]:
        """What parity measured lies flat beside the rest, null where there is none."""
        unknown = {field.name: None for field in fields(Parity)} | {"accuracy_drop_points": None}
        compared = self.parity.to_document() if self.parity else unknown
        return {**compared, **{k: v for k, v in asdict(self).items() if k != "parity"}, "passed": self.passed}


@dataclass(frozen=True)
class Tried:
    """A recipe of quantisation and what came of it; `agreement` is the one that counted, None if it did not run."""

    recipe: str
    agreement: float | None
    failures: tuple[str, ...]


@dataclass(frozen=True)
class ReleaseReport:
    """`output`: a kind of output. `quantisation`: the recipe taken of those `tried`, in their order.

    `evaluation`: where the texts are from. `unproven`: variants whose device is not here. `quality`: how good the
    model is, where the texts are labelled. `failures`: of the release itself, beside its variants'.
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

    @property
    def passed(self) -> bool:
        return not self.failures and all(variant.passed for variant in self.variants)

    def to_document(self) -> dict[str, Any]:
        variants = [variant.to_document() for variant in self.variants]
        return {**asdict(self), "passed": self.passed, "variants": variants}


def confusion(output: OutputSpec, scores: Floats, reference: Floats) -> tuple[Confusion, ...]:
    """The labels that a variant most often names instead of the reference's, where outputs are labels at all."""
    if not output.ranked:
        return ()
    rows = parity.disagreements(output, scores, reference)
    counts = Counter((agreement.name(reference[row], output), agreement.name(scores[row], output)) for row in rows)
    return tuple(Confusion(*pair, texts) for pair, texts in counts.most_common(_CONFUSIONS_KEPT))


def examples(output: OutputSpec, scores: Floats, reference: Floats, shown: Sequence[str]) -> tuple[Example, ...]:
    """The disagreements that a variant has least excuse for."""
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

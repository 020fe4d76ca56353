"""The texts of a build: INT8 is calibrated on some, the gate evaluates every variant on others."""

import hashlib
import itertools
import json
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from shared_model import demo_messages
from shared_model.encoding import InputSpec, Text
from shared_model.errors import BadInput
from shared_model.evaluation import samples
from shared_model.evaluation.agreement import Truth
from shared_model.evaluation.examples import Examples, read_examples
from shared_model.heads import HeadSpec
from shared_model.output import OutputKind, OutputSpec

#: Number of generated texts for each purpose, and the generator's seed: each purpose has its own stream of messages.
_CALIBRATION, _VALIDATION, _GATE = 1000, 600, 1000
_CALIBRATION_SEED, _VALIDATION_SEED, _GATE_SEED = 401, 1203, 911

#: Fewest lines of a sample, a fifth of which is held out for the gate and a fifth for validation.
MIN_SAMPLE = 500
_PART = 5
#: Where a sample has fewer texts for a purpose, because it is small or held texts of the evaluation, generated texts
#: are added up to this number: a sample of MIN_SAMPLE lines is enough.
_FEW_CALIBRATION, _FEW_VALIDATION = 300, 100

GENERATED, HELD_OUT, LABELLED = "generated", "held-out", "labelled"


@dataclass(frozen=True)
class GateTexts:
    """The texts that variants are evaluated on. `source`: GENERATED, HELD_OUT or LABELLED; `truth` only if LABELLED.

    `shown`: how a report names each text: by itself, or by its file and line if it may be private. `columns`:
    description of the CSV columns that were read. `reserve`: texts that are added in this order, for agreement alone,
    if the reference is certain on too few of these. `by_head`: texts of further heads, by name; a head without any is
    evaluated on these ones, without truth.
    """

    texts: Sequence[Text]
    shown: Sequence[str]
    source: str
    sha256: str
    truth: Truth | None = None
    columns: str = ""
    reserve: "tuple[GateTexts, ...]" = ()
    by_head: "Mapping[str, GateTexts]" = field(default_factory=dict)

    def of_head(self, name: str) -> "GateTexts":
        """The texts of a further head."""
        return self.by_head.get(name) or replace(self, truth=None)

    def first(self, count: int) -> "GateTexts":
        """The first of these unlabelled texts."""
        texts = self.texts[:count]
        return replace(self, texts=texts, shown=self.shown[:count], sha256=digest(texts))


@dataclass(frozen=True)
class Texts:
    """Three sets. No text for calibration or validation is equal to one of the gate's after normalisation.

    `calibration`: a recipe with fewer texts takes the first; the first `own` are of `file`, the user's sample, and the
    others generated. `validation`: texts on which a recipe ranks the layers to leave out of INT8. `barred`: texts of
    the sample that are left out, because the evaluation holds them.
    """

    calibration: Sequence[Text]
    validation: Sequence[Text]
    gate: GateTexts
    own: int = 0
    file: str = ""
    barred: int = 0

    def calibrated_on(self, used: int) -> str:
        """Description of the first `used` calibration texts."""
        own = min(self.own, used)
        barred = f"; {self.barred:,} others are in the evaluation and left out" if self.barred else ""
        if not own:
            return f"{used:,} generated texts, the last resort{barred}"
        generated = f" and {used - own:,} generated texts" if own < used else ""
        return f"{own:,} texts of {self.file}{generated}{barred}"


def choose(
    output: OutputSpec,
    reads: InputSpec,
    sample: Path | None = None,
    evaluation: Path | None = None,
    least: int = MIN_SAMPLE,
    further: Sequence[tuple[HeadSpec, Path | None]] = (),
) -> Texts:
    """Texts to build a release with: from the given files, else generated. Raises: BadInput, OSError.

    A `sample` of `least` lines or more is JSON Lines of {"text": …} or, for pairs, {"text": …, "text_pair": …}, or a
    CSV of examples, whose labels are ignored. Of its distinct texts that are not in `evaluation` (a CSV of examples),
    every fifth is held out for the gate, and every fifth for validation. `further`: the other heads, each with its own
    evaluation.
    """
    generated = generated_texts(reads)
    labelled = labelled_texts(evaluation, output, reads) if evaluation else None
    by_head = {head.name: labelled_texts(path, head.output, reads) if path else None for head, path in further}
    barred = {samples.normalised(text) for found in (labelled, *by_head.values()) if found for text in found.texts}
    lines, places = samples.read(sample, reads, least) if sample else ([], [])
    own = samples.distinct(lines, barred)
    parts = [own[start::_PART] for start in range(_PART)]
    drawn = samples.drawn(parts.pop(), _GATE)
    texts = [lines[number] for number in drawn]
    held_out = GateTexts(texts, [places[number] for number in drawn], HELD_OUT, digest(texts))
    validation = [lines[number] for number in samples.drawn(parts.pop(), _VALIDATION)]
    calibration = [lines[number] for number in samples.drawn([n for part in parts for n in part], _CALIBRATION)]
    barred |= {samples.normalised(text) for text in (*held_out.texts, *generated.texts)}
    few = (_FEW_CALIBRATION, _FEW_VALIDATION) if own else (_CALIBRATION, _VALIDATION)
    return Texts(
        [*calibration, *_generated(_CALIBRATION_SEED, few[0] - len(calibration), reads, barred)],
        [*validation, *_generated(_VALIDATION_SEED, few[1] - len(validation), reads, barred)],
        judged_on(labelled, by_head, held_out, generated),
        own=len(calibration),
        file=sample.name if sample else "",
        barred=len(samples.distinct(lines)) - len(own),
    )


def judged_on(labelled: GateTexts | None, by_head: Mapping[str, GateTexts | None], *others: GateTexts) -> GateTexts:
    """The texts of all heads: the labelled ones of each, if it has any, with the others in reserve."""
    own = {name: in_order(*filter(None, (found, *others))) for name, found in by_head.items()}
    return replace(in_order(*filter(None, (labelled, *others))), by_head=own)


def in_order(*sets: GateTexts) -> GateTexts:
    """The first set that has texts, with the others in reserve."""
    first, *reserve = [found for found in sets if found.texts]
    return replace(first, reserve=tuple(reserve))


def generated_texts(reads: InputSpec, count: int = _GATE) -> GateTexts:
    """Generated messages to evaluate on; consecutive ones form pairs if the model reads pairs."""
    made = _generated(_GATE_SEED, count, reads)
    return GateTexts(made, [shown(text) for text in made], GENERATED, digest(made))


def labelled_texts(path: Path, output: OutputSpec, reads: InputSpec) -> GateTexts:
    """The examples of a CSV to evaluate on. Raises: BadInput naming a line whose label the model does not have."""
    examples = read_examples(path, reads.pairs, unlabelled=output.kind is OutputKind.MULTI_LABEL)
    named = [shown(text) for text in examples.texts]
    return GateTexts(examples.texts, named, LABELLED, examples.sha256, truth_of(examples, output), examples.columns)


def truth_of(examples: Examples, output: OutputSpec) -> Truth:
    """Labels in the form that `parity` compares. Several labels, or several numbers of a regression, are joined by `|`;
    an empty field means that no label is true."""
    if output.kind is OutputKind.EMBEDDING:
        raise BadInput(examples.places[0], "an embedding has no labels to be right about; leave --eval out")
    given = zip(examples.labels, examples.places, strict=True)
    if output.kind is OutputKind.SINGLE_LABEL:
        return np.array([_indices([label], output, place)[0] for label, place in given])
    if output.kind is OutputKind.REGRESSION:
        return np.array([_numbers(label, output, place) for label, place in given])
    truth = np.zeros((len(examples.labels), output.width), bool)
    for row, (labels, place) in enumerate(given):
        truth[row, _indices(labels.split("|") if labels.strip() else [], output, place)] = True
    return truth


def digest(texts: Sequence[Text]) -> str:
    """sha256 of the texts as a JSON array."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def shown(text: Text) -> str:
    return text if isinstance(text, str) else " ⏵ ".join(text)


def _generated(seed: int, count: int, reads: InputSpec, barred: Collection[Hashable] = ()) -> list[Text]:
    """Generated messages, or pairs of them, without those whose normalised form is barred."""
    messages = demo_messages.texts(seed)
    made: Iterator[Text] = zip(messages, messages, strict=False) if reads.pairs else messages
    allowed = (text for text in made if not barred or samples.normalised(text) not in barred)
    return list(itertools.islice(allowed, max(count, 0)))


def _indices(labels: Sequence[str], output: OutputSpec, place: str) -> list[int]:
    if unknown := [label for label in labels if label not in output.names]:
        raise BadInput(place, f"the model does not know the label {unknown[0]!r}")
    return [output.names.index(label) for label in labels]


def _numbers(label: str, output: OutputSpec, place: str) -> list[float]:
    try:
        values = [float(part) for part in label.split("|")]
    except ValueError as error:
        raise BadInput(place, f"label {label!r} is not a number") from error
    if len(values) != output.width or not np.isfinite(values).all():
        raise BadInput(place, f"label {label!r}: needs {output.width} finite numbers, joined by |")
    return values

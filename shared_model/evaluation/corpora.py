"""The texts of a build: INT8 is calibrated on some, the gate evaluates every variant on others."""

import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shared_model import demo_messages
from shared_model.encoding import InputSpec, Text
from shared_model.errors import BadInput
from shared_model.evaluation.agreement import Truth
from shared_model.evaluation.examples import Examples, read_examples
from shared_model.output import OutputKind, OutputSpec

#: Number of generated texts for each purpose, and the generator's seed: each purpose has its own stream of messages.
_CALIBRATION, _VALIDATION, _GATE = 1000, 600, 1000
_CALIBRATION_SEED, _VALIDATION_SEED, _GATE_SEED = 401, 1203, 911

#: Fewest lines of a sample: a fifth of them is held out, and the gate permits one disagreement in 100 texts.
MIN_SAMPLE = 500
_PART = 5
#: JSON can contain lone surrogates, which UTF-8 cannot encode.
_SURROGATE = re.compile("[\ud800-\udfff]")

GENERATED, HELD_OUT, LABELLED = "generated", "held-out", "labelled"


@dataclass(frozen=True)
class GateTexts:
    """The texts that variants are evaluated on. `source`: GENERATED, HELD_OUT or LABELLED; `truth` only if LABELLED.

    `shown`: how a report names each text: by itself, or by its file and line if it may be private. `columns`:
    description of the CSV columns that were read.
    """

    texts: Sequence[Text]
    shown: Sequence[str]
    source: str
    sha256: str
    truth: Truth | None = None
    columns: str = ""


@dataclass(frozen=True)
class Texts:
    """Three disjoint sets. `calibration`: a recipe with fewer texts takes the first. `validation`: texts on which a
    recipe ranks the layers to leave out of INT8."""

    calibration: Sequence[Text]
    validation: Sequence[Text]
    gate: GateTexts


def choose(output: OutputSpec, reads: InputSpec, sample: Path | None = None, evaluation: Path | None = None) -> Texts:
    """Texts to build a release with: from the given files, else generated. Raises: BadInput, OSError.

    A `sample` is JSON Lines of {"text": …} or, for pairs, {"text": …, "text_pair": …}, or a CSV of examples, whose
    labels are ignored. Every fifth line is held out for the gate if no `evaluation` (a CSV of examples) is given, and
    every fifth for validation.
    """
    labelled = labelled_texts(evaluation, output, reads) if evaluation else None
    if sample is None:
        calibration = _generated(_CALIBRATION_SEED, _CALIBRATION, reads)
        validation = _generated(_VALIDATION_SEED, _VALIDATION, reads)
        return Texts(calibration, validation, labelled or generated_texts(reads))
    lines, places = read_sample(sample, reads)
    parts = [range(start, len(lines), _PART) for start in range(_PART)]
    gate = labelled
    if gate is None:
        held_out = _drawn(parts.pop(), _GATE)
        texts = [lines[number] for number in held_out]
        gate = GateTexts(texts, [places[number] for number in held_out], HELD_OUT, digest(texts))
    validation = [lines[number] for number in _drawn(parts.pop(), _VALIDATION)]
    rest = [number for part in parts for number in part]
    return Texts([lines[number] for number in _drawn(rest, _CALIBRATION)], validation, gate)


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


def read_sample(path: Path, reads: InputSpec) -> tuple[list[Text], list[str]]:
    """The texts of a JSON Lines or CSV file, and FILE:LINE of each, without the folder. Raises: BadInput naming the
    file and line; OSError if it cannot be read."""
    if path.suffix.lower() == ".csv":
        examples = read_examples(path, reads.pairs, unlabelled=True)
        found, places = examples.texts, [place.removeprefix(f"{path.parent}/") for place in examples.places]
        _check_enough(path, len(found))
        return found, places
    lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    _check_enough(path, len(lines))
    found = [_sample_text(line, f"{path}:{number}", reads) for number, line in enumerate(lines, 1)]
    return found, [f"{path.name}:{number}" for number in range(1, len(lines) + 1)]


def _check_enough(path: Path, lines: int) -> None:
    if lines < MIN_SAMPLE:
        raise BadInput(str(path), f"has {lines} lines, calibrating needs at least {MIN_SAMPLE}")


def digest(texts: Sequence[Text]) -> str:
    """sha256 of the texts as a JSON array."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def shown(text: Text) -> str:
    return text if isinstance(text, str) else " ⏵ ".join(text)


def _generated(seed: int, count: int, reads: InputSpec) -> list[Text]:
    messages = demo_messages.texts(seed)
    if reads.pairs:
        return [(first, second) for first, second in itertools.islice(zip(messages, messages, strict=False), count)]
    return list(itertools.islice(messages, count))


def _drawn(numbers: Sequence[int], most: int) -> list[int]:
    """At most `most` of them, in a fixed pseudo-random order: the beginning of a log differs from its end."""
    order = np.random.default_rng(_CALIBRATION_SEED).permutation(len(numbers))[:most]
    return [numbers[index] for index in order.tolist()]


def _sample_text(line: bytes, place: str, reads: InputSpec) -> Text:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise BadInput(place, "is not JSON") from error
    wanted = ("text", "text_pair") if reads.pairs else ("text",)
    found = [record.get(name) for name in wanted] if isinstance(record, dict) else []
    texts = [text for text in found if isinstance(text, str) and text.strip() and not _SURROGATE.search(text)]
    if len(texts) < len(wanted):
        raise BadInput(place, f"needs {' and '.join(wanted)}, each a text")
    if not reads.pairs and "text_pair" in record:
        raise BadInput(place, "has a text_pair, but this model reads single texts")
    return (texts[0], texts[1]) if reads.pairs else texts[0]


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

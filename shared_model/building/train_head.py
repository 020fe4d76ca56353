"""Trains linear heads on frozen sentence embeddings, each from a CSV of text and label."""

import contextlib
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared_model import devices
from shared_model.encoding import Encoder, Text
from shared_model.engine import open_engine
from shared_model.evaluation.agreement import RULES
from shared_model.evaluation.examples import Examples
from shared_model.heads import DEFAULT_HEAD
from shared_model.output import OutputKind
from shared_model.types import Device, Precision

if TYPE_CHECKING:
    from shared_model.building.fit_head import Trained

#: Labels with fewer texts than this are reported after training; at most so many are named.
_FEW, _FEW_SHOWN = 10, 10


@dataclass(frozen=True)
class Task:
    """A head to train. Several labels, or several numbers of a regression, are joined by `|` in an example's label; an
    empty label of a multi-label head means that none is true."""

    examples: Examples
    name: str = DEFAULT_HEAD
    kind: OutputKind = OutputKind.SINGLE_LABEL


def train(encoder_folder: Path, tasks: Sequence[Task], max_tokens: int | None = None) -> "list[Trained]":
    """Fit and cross-validate a head for each task, on embeddings that are computed once. Raises: BadInput for labels
    that cannot be learnt."""
    # Training is the only use of scikit-learn; the serving process never loads it.
    from shared_model.building import fit_head

    for task in tasks:
        fit_head.output_of(task.name, task.kind, task.examples)
    texts = distinct_texts(tasks)
    vectors, rows = embed(encoder_folder, texts, max_tokens), {text: row for row, text in enumerate(texts)}
    return [
        fit_head.fit(task.name, task.kind, vectors[[rows[text] for text in task.examples.texts]], task.examples)
        for task in tasks
    ]


def distinct_texts(tasks: Sequence[Task]) -> list[Text]:
    """The texts of all tasks, each once, in order."""
    return list(dict.fromkeys(text for task in tasks for text in task.examples.texts))


def in_words(labels: Sequence[str], trained: "Trained") -> Iterator[str]:
    """Lines that describe a trained head and its labels. `labels`: of all its texts; empty for a regression."""
    counts = Counter(labels)
    if counts:
        least, median = min(counts.values()), statistics.median(counts.values())
        yield f"texts per label: {least} at least, median {median:g}"
    if few := sorted(label for label, count in counts.items() if count < _FEW):
        more = f" and {len(few) - _FEW_SHOWN} more" if len(few) > _FEW_SHOWN else ""
        named = ", ".join(f"{label} ({counts[label]})" for label in few[:_FEW_SHOWN])
        yield f"fewer than {_FEW} texts, too few to learn from: {named}{more}"
    measure = RULES[trained.head.kind].accuracy
    if trained.accuracy is None:
        yield f"{measure} not known: cross-validation needs two labels with two texts or more"
    else:
        yield f"{measure} {trained.accuracy:.2%} in {trained.folds}-fold cross-validation"


def embed(encoder_folder: Path, texts: Sequence[Text], max_tokens: int | None = None) -> NDArray[np.float32]:
    """Unit-length sentence embeddings, fp32 (texts, width). Raises: BadInput if the folder holds no encoder."""
    from shared_model.building import checkpoint, convert
    from shared_model.evaluation import benchmark

    source = checkpoint.load_encoder(encoder_folder, max_tokens=max_tokens)
    encodings = Encoder(source.files["tokenizer.json"], source.reads, release="").encode_many(texts)
    # The releases' fp32 engine takes less than half of torch's time.
    graph = convert.openvino_files(convert.to_openvino(source))
    with contextlib.closing(open_engine(Precision.FP32, Device.CPU, graph, devices.cores())) as engine:
        return benchmark.score_all(engine, source.output, encodings, "embedding")

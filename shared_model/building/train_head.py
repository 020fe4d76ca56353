"""Trains a linear head on frozen sentence embeddings, from a CSV of text and label."""

import contextlib
import statistics
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shared_model import devices
from shared_model.building.head import Head
from shared_model.encoding import Encoder, Text
from shared_model.engine import open_engine
from shared_model.errors import BadInput
from shared_model.evaluation.examples import Examples
from shared_model.types import Device, Precision

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

#: Inverse regularisation strength on unit-length embeddings. Five-fold cross-validation on BANKING77's training split:
#: accuracy is flat around it (5: 91.70 %, 10: 92.08 %, 20: 92.06 %, 40: 91.99 %).
INVERSE_REGULARISATION = 20.0

_FOLDS = 5
#: Labels with fewer texts than this are reported after training; at most so many are named.
_FEW, _FEW_SHOWN = 10, 10


@dataclass(frozen=True)
class Trained:
    """`accuracy`: from cross-validation; None if the labels have too few texts for two folds."""

    head: Head
    folds: int
    accuracy: float | None


def train(encoder_folder: Path, examples: Examples, max_tokens: int | None = None) -> Trained:
    """Fit and cross-validate multinomial logistic regression on the embeddings of `examples`. Raises: BadInput for a
    single label."""
    if len(set(examples.labels)) < 2:
        raise BadInput("label", "training needs at least two labels")
    vectors = embed(encoder_folder, examples.texts, max_tokens)
    folds, accuracy = _cross_validated(vectors, examples.labels)
    model = _model()
    model.fit(vectors, examples.labels)
    weight, bias = model.coef_, model.intercept_
    if len(model.classes_) == 2:
        # For two labels scikit-learn stores one logit z; softmax of (-z/2, z/2) gives the same probabilities.
        weight, bias = np.vstack([-weight / 2, weight / 2]), np.concatenate([-bias / 2, bias / 2])
    names = tuple(str(label) for label in model.classes_)
    head = Head(names, np.ascontiguousarray(weight, dtype=np.float32), bias.astype(np.float32))
    return Trained(head, folds, accuracy)


def in_words(labels: Sequence[str], trained: Trained) -> Iterator[str]:
    """Lines that describe a trained head and its labels."""
    counts = Counter(labels)
    least, median = min(counts.values()), statistics.median(counts.values())
    yield f"texts per label: {least} at least, median {median:g}"
    if few := sorted(label for label, count in counts.items() if count < _FEW):
        more = f" and {len(few) - _FEW_SHOWN} more" if len(few) > _FEW_SHOWN else ""
        named = ", ".join(f"{label} ({counts[label]})" for label in few[:_FEW_SHOWN])
        yield f"fewer than {_FEW} texts, too few to learn from: {named}{more}"
    if trained.accuracy is None:
        yield "accuracy not known: cross-validation needs two labels with two texts or more"
    else:
        yield f"accuracy {trained.accuracy:.2%} in {trained.folds}-fold cross-validation"


def _cross_validated(vectors: NDArray[np.float32], labels: Sequence[str]) -> tuple[int, float | None]:
    """Number of folds and accuracy. Every fold contains the two most frequent labels, so training always has two."""
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = min(_FOLDS, sorted(Counter(labels).values())[-2])
    if folds < 2:
        return 0, None
    with warnings.catch_warnings():
        # It warns of labels with fewer texts than folds; `in_words` reports them.
        warnings.filterwarnings("ignore", message="The least populated class")
        split = StratifiedKFold(folds, shuffle=True, random_state=0)
        predicted = cross_val_predict(_model(), vectors, np.array(labels), cv=split)
    return folds, float((predicted == np.array(labels)).mean())


def _model() -> "LogisticRegression":
    # Training is the only use of scikit-learn; the serving process never loads it.
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=INVERSE_REGULARISATION, max_iter=1000)


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

"""Fits one linear head to embeddings, and measures it by cross-validation. Training alone loads scikit-learn."""

import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict

from shared_model.building.head import Head
from shared_model.errors import BadInput
from shared_model.evaluation import corpora, parity
from shared_model.evaluation.agreement import RULES
from shared_model.evaluation.examples import Examples
from shared_model.heads import DEFAULT_HEAD
from shared_model.output import Floats, OutputKind, OutputSpec

#: Inverse regularisation strength on unit-length embeddings. Five-fold cross-validation on BANKING77's training split:
#: accuracy is flat around it (5: 91.70 %, 10: 92.08 %, 20: 92.06 %, 40: 91.99 %).
INVERSE_REGULARISATION = 20.0
#: The same strength for values, whose errors are squared.
_RIDGE = 1 / INVERSE_REGULARISATION

_FOLDS = 5

Targets = NDArray[Any]


@dataclass(frozen=True)
class Trained:
    """`accuracy`: from cross-validation, by the measure of the head's kind of output; None if there are too few texts
    for two folds."""

    head: Head
    folds: int
    accuracy: float | None


def fit(name: str, kind: OutputKind, vectors: Floats, examples: Examples) -> Trained:
    """A head on `vectors` (texts, hidden), the embeddings of the examples. Raises: BadInput for labels that cannot be
    learnt."""
    output = output_of(name, kind, examples)
    targets = corpora.truth_of(examples, output)
    if kind is OutputKind.MULTI_LABEL and (always := np.flatnonzero(targets.all(axis=0))).size:
        raise BadInput(
            _place(name), f"{output.names[always[0]]!r} is on every text, so there is nothing to learn it from"
        )
    folds, accuracy = cross_validated(kind, vectors, targets)
    weight, bias = _fitted(kind, vectors, targets)
    head = Head(output.names, np.ascontiguousarray(weight, dtype=np.float32), bias.astype(np.float32), name, kind)
    return Trained(head, folds, accuracy)


def output_of(name: str, kind: OutputKind, examples: Examples) -> OutputSpec:
    """The contract of a head by its examples: labels sorted; values named as the head, numbered if there are several.
    Raises: BadInput."""
    if kind is OutputKind.REGRESSION:
        width = examples.labels[0].count("|") + 1
        names = (name,) if width == 1 else tuple(f"{name}-{number}" for number in range(1, width + 1))
        return OutputSpec(kind, names, width)
    found = {label for cell in examples.labels for label in labels_in(kind, cell)}
    if len(found) < (2 if kind is OutputKind.SINGLE_LABEL else 1):
        needed = "two labels" if kind is OutputKind.SINGLE_LABEL else "one label"
        raise BadInput(_place(name), f"training needs at least {needed}")
    return OutputSpec(kind, tuple(sorted(found)), len(found))


def _place(name: str) -> str:
    """The labels of a head, in an error."""
    return "label" if name == DEFAULT_HEAD else f"label of the head {name}"


def labels_in(kind: OutputKind, cell: str) -> list[str]:
    """The labels in one cell of a CSV; several are joined by `|`."""
    if kind is OutputKind.MULTI_LABEL:
        return cell.split("|") if cell.strip() else []
    return [] if kind is OutputKind.REGRESSION else [cell]


def cross_validated(kind: OutputKind, vectors: Floats, targets: Targets) -> tuple[int, float | None]:
    """Number of folds and accuracy; (0, None) where a fold could lack a label that it needs. Every fold of single
    labels contains the two most frequent ones, so training always has two."""
    folds = min(_FOLDS, _most_folds(kind, targets))
    if folds < 2:
        return 0, None
    if kind is OutputKind.REGRESSION:
        split = KFold(folds, shuffle=True, random_state=0)
        predicted = cross_val_predict(_model(kind), vectors, targets, cv=split).reshape(targets.shape)
        return folds, parity.accuracy(RULES[kind], predicted, targets)
    with warnings.catch_warnings():
        # It warns of labels with fewer texts than folds; those are reported after training.
        warnings.filterwarnings("ignore", message="The least populated class")
        split = StratifiedKFold(folds, shuffle=True, random_state=0)
        columns = targets.reshape(len(targets), -1).T
        predicted = np.stack([cross_val_predict(_model(kind), vectors, it, cv=split) for it in columns])
    return folds, float((predicted == columns).all(axis=0).mean())


def _most_folds(kind: OutputKind, targets: Targets) -> int:
    if kind is OutputKind.SINGLE_LABEL:
        return sorted(Counter(targets.tolist()).values())[-2]
    if kind is OutputKind.MULTI_LABEL:
        return int(min(targets.sum(axis=0).min(), (~targets).sum(axis=0).min()))
    return len(targets) // 2


def _fitted(kind: OutputKind, vectors: Floats, targets: Targets) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weight (outputs, hidden) and bias (outputs,) of a linear model; of several labels, each is fitted by itself."""
    if kind is OutputKind.MULTI_LABEL:
        fitted = [_model(kind).fit(vectors, column) for column in targets.T]
        return np.vstack([it.coef_ for it in fitted]), np.concatenate([it.intercept_ for it in fitted])
    model = _model(kind).fit(vectors, targets)
    weight, bias = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    if kind is OutputKind.SINGLE_LABEL and len(model.classes_) == 2:
        # For two labels scikit-learn stores one logit z; softmax of (-z/2, z/2) gives the same probabilities.
        return np.vstack([-weight / 2, weight / 2]), np.concatenate([-bias / 2, bias / 2])
    return weight, bias


def _model(kind: OutputKind) -> LogisticRegression | Ridge:
    if kind is OutputKind.REGRESSION:
        return Ridge(_RIDGE)
    return LogisticRegression(C=INVERSE_REGULARISATION, max_iter=1000)

"""Rules of agreement with the reference for each kind of output. Pure functions of scores, (texts, width)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared_model.output import Floats, OutputKind, OutputSpec

Bools = NDArray[np.bool_]
#: Ground truth of each text: a label's index int64 (texts,), labels bool (texts, width), or values (texts, width).
Truth = NDArray[Any]

#: Without labelled texts, agreement is required only where the reference prefers its label to the next by this
#: probability: messages such as "ok" or "still waiting" have no intent, and their first label is chance.
CLEAR_MARGIN = 0.10
#: Multi-label: a label is true from this probability on, and its truth is clear at this distance from it.
LABEL_IS_TRUE, CLEAR_OF_THRESHOLD = 0.5, 0.05
#: A regression agrees within this share of the standard deviation of the reference's values over the texts.
MAX_DEVIATIONS = 0.1
#: An embedding agrees from this cosine on. INT8 of all-MiniLM-L6-v2 on 1,000 generated messages: median 0.998, worst
#: 0.964 ("thank you!"), 99.6 % at 0.97 or more; the similarity of two messages moves by 0.05 at most. BF16: 0.9999.
MIN_COSINE = 0.97


@dataclass(frozen=True)
class Rules:
    """The rules of one kind of output. All functions are per text.

    agrees: (scores, reference) → bool. clear: reference → bool, whether it is certain enough to count without labelled
    texts. right: (scores, truth) → bool; None for outputs that are not right or wrong. distance: (scores, reference) →
    difference of the two, or certainty of the reference; `distance_form` formats it.
    """

    claim: str
    clear_texts: str
    accuracy: str
    agrees: Callable[[Floats, Floats], Bools]
    clear: Callable[[Floats], Bools]
    right: Callable[[Floats, Truth], Bools] | None
    distance: Callable[[Floats, Floats], Floats]
    distance_form: str


def label_margins(scores: Floats) -> Floats:
    """Probability of each row's best label minus that of its second."""
    two_best = np.partition(scores, -2, axis=1)[:, -2:]
    return np.asarray(two_best[:, 1] - two_best[:, 0])


def threshold_margins(scores: Floats) -> Floats:
    """Distance of each row's nearest probability from the threshold."""
    return np.asarray(np.abs(scores - LABEL_IS_TRUE).min(axis=1))


def deviations(scores: Floats, reference: Floats) -> Floats:
    """Each row's largest difference, in standard deviations of the reference's values."""
    spread = reference.std(axis=0)
    # The spread of constant values is 0: only equal values agree with them.
    return np.asarray((np.abs(scores - reference) / np.maximum(spread, np.finfo(np.float32).tiny)).max(axis=1))


def cosines(scores: Floats, reference: Floats) -> Floats:
    lengths = np.linalg.norm(scores, axis=1) * np.linalg.norm(reference, axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray((scores * reference).sum(axis=1) / np.maximum(lengths, np.finfo(np.float32).tiny))


def name(row: Floats, output: OutputSpec) -> str:
    """One row of scores as text; empty for an embedding."""
    if output.kind is OutputKind.SINGLE_LABEL:
        return output.names[int(row.argmax())]
    if output.kind is OutputKind.MULTI_LABEL:
        true = [label for label, score in zip(output.names, row, strict=True) if score >= LABEL_IS_TRUE]
        return "|".join(true) or "no label"
    return "|".join(f"{value:.4g}" for value in row) if output.kind is OutputKind.REGRESSION else ""


def _everywhere(reference: Floats) -> Bools:
    return np.ones(len(reference), bool)


RULES: Mapping[OutputKind, Rules] = {
    OutputKind.SINGLE_LABEL: Rules(
        claim="names the reference's label",
        clear_texts="texts with a clear label",
        accuracy="accuracy",
        agrees=lambda scores, reference: scores.argmax(1) == reference.argmax(1),
        clear=lambda reference: label_margins(reference) >= CLEAR_MARGIN,
        right=lambda scores, truth: scores.argmax(1) == truth,
        distance=lambda scores, reference: label_margins(reference),
        distance_form="fp32 prefers its label by {:.2f}",
    ),
    OutputKind.MULTI_LABEL: Rules(
        claim="names exactly the reference's labels",
        clear_texts="texts with clear labels",
        accuracy="exact match",
        agrees=lambda scores, reference: ((scores >= LABEL_IS_TRUE) == (reference >= LABEL_IS_TRUE)).all(axis=1),
        clear=lambda reference: threshold_margins(reference) >= CLEAR_OF_THRESHOLD,
        right=lambda scores, truth: ((scores >= LABEL_IS_TRUE) == truth).all(axis=1),
        distance=lambda scores, reference: threshold_margins(reference),
        distance_form="fp32 is {:.2f} away from another set",
    ),
    OutputKind.REGRESSION: Rules(
        claim=f"is within {MAX_DEVIATIONS} standard deviations of the reference",
        clear_texts="texts",
        accuracy="rank correlation",
        agrees=lambda scores, reference: deviations(scores, reference) <= MAX_DEVIATIONS,
        clear=_everywhere,
        right=None,
        distance=deviations,
        distance_form="{:.2f} standard deviations apart",
    ),
    OutputKind.EMBEDDING: Rules(
        claim=f"has a cosine of at least {MIN_COSINE} with the reference",
        clear_texts="texts",
        accuracy="–",
        agrees=lambda scores, reference: cosines(scores, reference) >= MIN_COSINE,
        clear=_everywhere,
        right=None,
        distance=lambda scores, reference: 1 - cosines(scores, reference),
        distance_form="cosine distance {:.3f}",
    ),
}

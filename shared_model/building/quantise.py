"""Makes the INT8 graph: tries recipes, from cheap to strong, until one agrees with fp32."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared_model import devices
from shared_model.encoding import Encoding
from shared_model.engine import open_engine
from shared_model.evaluation.gate import Evaluator, Say
from shared_model.evaluation.verdict import Compared, Tried
from shared_model.output import Floats
from shared_model.storage import one_line
from shared_model.types import Device, Precision

if TYPE_CHECKING:
    import openvino as ov

    from shared_model.building.recipes import Recipe


@dataclass(frozen=True)
class Int8:
    """An INT8 graph that runs: its recipe, number of calibration texts, files, scores of the evaluator's texts, and
    each head's parity."""

    recipe: str
    texts: int
    files: Mapping[str, bytes]
    scores: Floats
    compared: Compared


def quantise(
    model: "ov.Model",
    calibration: Sequence[Encoding],
    validation: Sequence[Encoding],
    evaluator: Evaluator,
    recipes: Sequence["Recipe"],
    say: Say,
) -> tuple[Int8 | None, tuple[Tried, ...]]:
    """The INT8 graph of the first recipe that passes, else of the nearest one; None if no recipe runs.

    Latency is not checked here: no stronger recipe makes a graph faster.
    """
    best: Int8 | None = None
    tried: list[Tried] = []
    # With few texts, recipes that differ only in the number of texts are equal.
    distinct: dict[tuple[int, float], Recipe] = {}
    for recipe in recipes:
        distinct.setdefault((min(recipe.texts, len(calibration)), recipe.spared), recipe)
    for recipe in distinct.values():
        say(f"quantising to INT8: {recipe.name}")
        try:
            made = _apply(recipe, model, calibration, validation, evaluator)
        except Exception as error:  # noqa: BLE001 - frameworks raise anything, and there are more recipes
            tried.append(Tried(recipe.name, None, (f"cannot run: {one_line(error)}",)))
        else:
            tried.append(Tried(recipe.name, made.compared.asked_agreement, made.compared.failures))
            if made.compared.passed:
                return made, tuple(tried)
            if best is None or made.compared.asked_agreement > best.compared.asked_agreement:
                best = made
        say(f"  it {tried[-1].failures[0]}")
    return best, tuple(tried)


def _apply(
    recipe: "Recipe",
    model: "ov.Model",
    calibration: Sequence[Encoding],
    validation: Sequence[Encoding],
    evaluator: Evaluator,
) -> Int8:
    from shared_model.building import convert, embedding_tables, recipes

    graph = recipes.apply(recipe, model, calibration, validation)
    embedding_tables.look_up_first(graph)
    files = convert.openvino_files(graph)
    with contextlib.closing(open_engine(Precision.INT8, Device.CPU, files, devices.cores())) as engine:
        scores = evaluator.score(engine, f"scoring {recipe.name}")
    return Int8(recipe.name, min(recipe.texts, len(calibration)), files, scores, evaluator.compare(scores))

"""Recipes: every one makes an INT8 graph that still says what fp32 says; sparing ones spare the layer that matters."""

import functools
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch

from shared_model.building import checkpoint, convert, recipes
from shared_model.building.recipes import LEAST_INT8, RECIPES, QuantisationError, Quantiser, Recipe
from shared_model.encoding import Encoder, Encoding, Text, collate
from shared_model.output import Floats
from tests.shared_model import tiny_models

pytestmark = pytest.mark.heavy

#: A tiny graph, texts to calibrate it on, and others to compare on.
Case = tuple[ov.Model, list[Encoding], list[Encoding]]


def tiny_bert(folder: Path, pairs: bool) -> Case:
    texts: list[Text] = [*tiny_models.corpus()[:64]]
    made = checkpoint.load(tiny_models.make(folder, "bert"), pairs=pairs)
    encoder = Encoder(made.files["tokenizer.json"], made.reads, release="")
    encodings = encoder.encode_many([(str(text), "card") for text in texts] if pairs else texts)
    return convert.to_openvino(made), encodings[:16], encodings[16:]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return tiny_bert(tmp_path_factory.mktemp("bert"), pairs=False)


@pytest.fixture(scope="module")
def quantised(bert: Case) -> list[ov.Model]:
    """By every recipe in turn, those once that so few texts make the same."""
    made = functools.cache(Quantiser(*bert).apply)
    return [made(replace(recipe, texts=400)) for recipe in RECIPES]


def test_every_recipe_makes_an_int8_graph_that_agrees(bert: Case, quantised: list[ov.Model]) -> None:
    model, _, others = bert
    for graph in quantised:
        assert weights_in_int8(graph) > 0
        assert np.corrcoef(outputs(graph, others).ravel(), outputs(model, others).ravel())[0, 1] > 0.98


def test_the_more_a_recipe_spares_the_less_is_int8_and_the_smaller_the_error(
    bert: Case, quantised: list[ov.Model]
) -> None:
    model, _, others = bert
    sparing = [RECIPES.index(recipe) for recipe in RECIPES if recipe.spared]
    compared = [quantised[index] for index in (0, *sparing)]
    in_int8 = [weights_in_int8(graph) for graph in compared]
    errors = [np.square(outputs(graph, others) - outputs(model, others)).mean() for graph in compared]
    assert in_int8 == sorted(set(in_int8), reverse=True)
    assert errors == sorted(errors, reverse=True)


def test_every_rounded_layer_is_ranked_once_with_those_that_read_the_same(
    bert: Case, quantised: list[ov.Model]
) -> None:
    model, _, others = bert
    ranked = recipes.rank(quantised[0], model, others)
    names = [name for group in ranked for name in group]
    assert len(names) == len(set(names))
    assert set(names) == rounded_layers(quantised[0])
    first_layer = [group for group in ranked if any("layer.0.attention.self" in name for name in group)]
    assert [len(group) for group in first_layer] == [3], "query, key and value read one tensor"


@pytest.mark.proof
def test_pairs_and_their_token_types_are_quantised_too(tmp_path: Path) -> None:
    model, calibration, others = tiny_bert(tmp_path, pairs=True)
    graph = Quantiser(model, calibration, others).apply(RECIPES[-1])
    assert weights_in_int8(graph) > 0
    assert np.corrcoef(outputs(graph, others).ravel(), outputs(model, others).ravel())[0, 1] > 0.98


def test_a_recipe_reads_no_more_texts_than_it_names(fragile: Case) -> None:
    model, calibration, others = fragile
    five, same, all_of_them = (
        outputs(Quantiser(model, texts, ()).apply(Recipe(count)), others)
        for count, texts in ((5, calibration), (40, calibration[:5]), (40, calibration))
    )
    np.testing.assert_array_equal(five, same)
    assert not np.array_equal(five, all_of_them)
    assert "up to 5 texts" in Recipe(5).name


def test_sensitivities_are_measured_once(fragile: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    ranked: list[int] = []
    rank = recipes.rank
    monkeypatch.setattr(recipes, "rank", lambda *given: ranked.append(1) or rank(*given))
    quantiser = Quantiser(*fragile)
    quantiser.apply(Recipe(40))
    assert ranked == [], "a recipe without spared layers ranks none"
    quantiser.apply(Recipe(40, spared=0.25))
    quantiser.apply(Recipe(40, spared=0.25, smoothing=-1))
    assert ranked == [1]


def test_a_graph_with_few_layers_in_int8_is_not_called_int8(fragile: Case) -> None:
    """Three of four layers are the least."""
    quantiser = Quantiser(*fragile)
    assert recipes.int8_share(quantiser.apply(Recipe(40, spared=0.25))) == LEAST_INT8 == 0.75
    with pytest.raises(QuantisationError, match="only 50% of linear layers read INT8, 75% must"):
        quantiser.apply(Recipe(40, spared=0.5))
    with pytest.raises(QuantisationError, match="no group of the 4 linear layers is within 20%"):
        quantiser.apply(Recipe(40, spared=0.2))


def test_recipes_go_from_cheap_to_strong_under_names_of_their_own() -> None:
    strength = [(recipe.spared, recipe.texts) for recipe in RECIPES]
    assert strength == sorted(set(strength))
    assert len({recipe.name for recipe in RECIPES}) == len(RECIPES)


class Fragile(torch.nn.Module):
    """Four layers, of which `fragile` cannot be rounded to INT8.

    Every text begins with token 0, whose vector is a thousand times longer than the others': of these, a range wide
    enough for it leaves nothing. fp32 keeps them, and only they decide the label.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.vectors = torch.nn.Embedding(64, 32)
        self.fragile, self.second, self.third = (torch.nn.Linear(32, 32, bias=False) for _ in range(3))
        self.head = torch.nn.Linear(32, 8, bias=False)
        with torch.no_grad():
            self.vectors.weight[0] *= 1000

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.fragile(self.vectors(ids)))
        hidden = torch.tanh(self.third(torch.tanh(self.second(hidden))))
        others = mask[:, 1:].unsqueeze(-1).float()
        scores: torch.Tensor = self.head((hidden[:, 1:] * others).sum(1) / others.sum(1))
        return scores


@pytest.fixture
def fragile() -> Case:
    example = torch.ones(2, 8, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = convert.convert_model(Fragile(), example_input=(example, example), input=[([-1, -1], ov.Type.i64)] * 2)
    for port, name in zip(model.inputs, ("ids", "mask"), strict=True):
        port.get_tensor().set_names({name})
    draw = np.random.default_rng(9)
    rows = [np.r_[0, draw.integers(1, 64, draw.integers(3, 12))].astype(np.int32) for _ in range(240)]
    encodings = [Encoding(row, truncated=False) for row in rows]
    return model, encodings[:40], encodings[40:]


def test_the_float_graph_stays_as_it_was(fragile: Case) -> None:
    model, calibration, others = fragile
    before = outputs(model, others)
    Quantiser(model, calibration, others).apply(Recipe(5, spared=0.25))
    np.testing.assert_array_equal(outputs(model, others), before)


def test_the_layer_that_breaks_agreement_stays_out_of_int8(fragile: Case) -> None:
    model, calibration, others = fragile
    expected = outputs(model, others).argmax(1)
    quantiser = Quantiser(model, calibration, others)
    plain, sparing = quantiser.apply(Recipe(40)), quantiser.apply(Recipe(40, spared=0.25))
    assert (outputs(plain, others).argmax(1) == expected).mean() < 0.6
    assert (outputs(sparing, others).argmax(1) == expected).mean() > 0.95
    rounded, spared = rounded_layers(plain), rounded_layers(sparing)
    assert len(rounded) == 4
    assert [name for name in sorted(rounded - spared) if "fragile" in name] == sorted(rounded - spared) != []


def outputs(model: ov.Model, texts: Sequence[Encoding]) -> Floats:
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    batch = collate(texts)
    result: Floats = compiled([array for array in (batch.ids, batch.mask, batch.types) if array is not None])[0]
    return result


def rounded_layers(model: ov.Model) -> set[str]:
    """Names of the layers whose input is rounded to INT8."""
    return {
        node.get_friendly_name()
        for node in model.get_ordered_ops()
        if node.get_type_name() == "MatMul" and node.input_value(0).get_node().get_type_name() == "FakeQuantize"
    }


def weights_in_int8(model: ov.Model) -> int:
    nodes = model.get_ordered_ops()
    return sum(n.get_type_name() == "Constant" and n.get_element_type() == ov.Type.i8 for n in nodes)

"""A quantised table stays in integers: rows are looked up first, and every answer keeps its bits."""

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13 as ops

from shared_model.building.embedding_tables import look_up_first

ROWS, WIDTH = 50, 6
_draw = np.random.default_rng(5)
TABLE = _draw.integers(-128, 128, (ROWS, WIDTH)).astype(np.int8)
BY_ROW = _draw.normal(size=(ROWS, 1)).astype(np.float32)
ONE = np.float32(0.25)
IDS = _draw.integers(0, ROWS, (3, 7)).astype(np.int64)


def widened(table: NDArray[np.int8], offset: NDArray[np.float32] | None, scale: NDArray[np.float32]) -> ov.Node:
    wide = ops.convert(ops.constant(table), "f32")
    return ops.multiply(wide if offset is None else ops.subtract(wide, ops.constant(offset)), ops.constant(scale))


def looking_up(table: ov.Node, axis: int = 0) -> ov.Model:
    ids = ops.parameter([-1, -1], np.int64, name="ids")
    ids.output(0).set_names({"ids"})
    return ov.Model([ops.gather(table, ids, ops.constant(axis))], [ids])


def answers(model: ov.Model) -> NDArray[np.float32]:
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.array(compiled({"ids": IDS})[0])


def looked_up(model: ov.Model) -> list[str]:
    """Types of what is looked up in."""
    return [
        node.input_value(0).get_element_type().to_string()
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Gather"
    ]


@pytest.mark.parametrize("scale", [BY_ROW, ONE], ids=["by row", "one"])
@pytest.mark.parametrize("offset", [None, BY_ROW, ONE], ids=["no offset", "by row", "one"])
def test_integers_are_looked_up_and_every_bit_stays(
    offset: NDArray[np.float32] | None, scale: NDArray[np.float32]
) -> None:
    model = looking_up(widened(TABLE, offset, scale))
    before = answers(model)
    look_up_first(model)
    assert "i8" in looked_up(model)
    np.testing.assert_array_equal(answers(model), before)


def test_a_table_of_floats_and_a_look_up_of_columns_stay_as_they_are() -> None:
    floats = looking_up(ops.constant(BY_ROW))
    columns = looking_up(widened(TABLE[:, :1].repeat(ROWS, 1), None, ONE), axis=1)
    for model in (floats, columns):
        look_up_first(model)
        assert looked_up(model) == ["f32"]

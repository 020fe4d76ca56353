"""The columns of a row that hold scores: the first head's in columns of their own, the others' in one map. No Spark."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from batch_job.shards.schemas import HEADS, TOP_K, VECTOR
from shared_model import types
from shared_model.heads import Heads
from shared_model.output import Floats, OutputSpec


class HeadColumns(NamedTuple):
    """One head of some rows. `top_k`: lists of TOP_K, empty for an embedding; `vector`: lists of VECTOR, else null;
    `abstained`: null if the head never abstains."""

    top_k: pa.ListArray
    vector: pa.ListArray
    abstained: pa.BooleanArray


def encode(
    heads: Heads, indices: NDArray[np.int32], scores: Floats, abstained: NDArray[np.bool_]
) -> dict[str, pa.Array]:
    """The columns label, score, top_k, vector, abstained and heads. `indices` and `scores`: (rows, kept), as
    `Heads.best` has them; `abstained`: (rows, heads)."""
    count, kept = len(scores), heads.kept(types.TOP_K)
    parts = [
        _encode(spec.output, indices[:, columns], scores[:, columns], unsure)
        for spec, columns, unsure in zip(heads.specs, kept, abstained.T, strict=True)
    ]
    own, *others = parts
    label, score = pa.nulls(count, pa.string()), pa.nulls(count, pa.float32())
    if heads.first.output.names:
        label, score = pa.array(heads.first.output.names).take(pa.array(indices[:, 0])), pa.array(scores[:, 0])
    further = _as_map([spec.name for spec in heads.further], others, count)
    return {"label": label, "score": score, **own._asdict(), "heads": further}


def decode(rows: pa.RecordBatch | pa.Table, heads: Heads) -> list[HeadColumns]:
    """Each head of rows with the columns top_k, vector, abstained and, where there are several heads, heads; null where
    a row lacks a head."""
    own = HeadColumns(*(_array(rows.column(name)) for name in HeadColumns._fields))
    if not heads.further:
        return [own]
    found = _array(rows.column("heads"))
    parts = [pc.map_lookup(found, spec.name, "first") for spec in heads.further]
    return [own, *(HeadColumns(*(pc.struct_field(it, name) for name in HeadColumns._fields)) for it in parts)]


def numbers(rows: pa.RecordBatch) -> list[pa.Array]:
    """All scores of all heads that rows with the columns top_k, vector and heads hold."""
    heads = rows.column("heads")
    # Entries of a part of a column lie among those of the whole.
    start, end = heads.offsets[0].as_py(), heads.offsets[-1].as_py()
    parts = heads.items.slice(start, end - start)
    lists = [(rows.column("top_k"), rows.column("vector"))]
    lists.append((pc.struct_field(parts, "top_k"), pc.struct_field(parts, "vector")))
    return [it for top_k, vector in lists for it in (pc.struct_field(top_k.flatten(), "score"), vector.flatten())]


def _encode(
    output: OutputSpec, indices: NDArray[np.int32], scores: Floats, abstained: NDArray[np.bool_]
) -> HeadColumns:
    count, kept = scores.shape
    unsure = pa.array(abstained) if output.abstains else pa.nulls(count, pa.bool_())
    values, ends = pa.array(scores.ravel()), pa.array(np.arange(count + 1, dtype=np.int32) * kept)
    if not output.names:
        return HeadColumns(pa.array([[]] * count, TOP_K), pa.ListArray.from_arrays(ends, values), unsure)
    best = [pa.array(output.names).take(pa.array(indices.ravel())), values]
    top_k = pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays(best, fields=list(TOP_K.value_type)))
    return HeadColumns(top_k, pa.nulls(count, VECTOR), unsure)


def _as_map(names: list[str], parts: list[HeadColumns], rows: int) -> pa.MapArray:
    if not names:
        return pa.nulls(rows, HEADS)
    # Row by row instead of head by head.
    order = pa.array(np.arange(rows * len(names)).reshape(len(names), rows).T.ravel())
    columns = [pa.concat_arrays(column).take(order) for column in zip(*parts, strict=True)]
    items = pa.StructArray.from_arrays(columns, fields=list(HEADS.item_type))
    ends = pa.array(np.arange(rows + 1, dtype=np.int32) * len(names))
    keys = pa.array(names).take(pa.array(np.tile(np.arange(len(names)), rows)))
    return pa.MapArray.from_arrays(ends, keys, items)


def _array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

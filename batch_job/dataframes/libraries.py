"""Columns of pandas, Polars and Arrow frames as lists, and frames with columns of scores beside their own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from batch_job.dataframes.columns import values_of
from shared_model.errors import BadInput


@dataclass(frozen=True)
class Library:
    """The differences between libraries of data frames. Importing this loads no library."""

    names: Callable[[Any], Sequence[object]]
    values: Callable[[Any, str], list[object]]
    beside: Callable[[Any, pa.Table], Any]


def library(frame: object) -> Library:
    """Raises: BadInput for a frame of no library that is known."""
    kind = type(frame)
    found = _LIBRARIES.get((kind.__module__.partition(".")[0], kind.__name__))
    if found is None:
        known = ", ".join(f"{package}.{name}" for package, name in _LIBRARIES)
        raise BadInput("frame", f"{kind.__module__}.{kind.__name__} is not one of {known}")
    return found


def _beside_pandas(frame: Any, scores: pa.Table) -> Any:
    import pandas as pd

    scored = scores.to_pandas(maps_as_pydicts="strict")
    scored.index = frame.index
    return pd.concat([frame, scored], axis="columns")


def _beside_polars(frame: Any, scores: pa.Table) -> Any:
    import polars as pl

    return frame.hstack(pl.from_arrow(scores))


def _beside_batch(frame: pa.RecordBatch, scores: pa.Table) -> pa.RecordBatch:
    columns = [*frame.columns, *(column.combine_chunks() for column in scores.columns)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*frame.schema, *scores.schema]))


def _arrow_values(frame: Any, name: str) -> list[object]:
    return values_of(frame.column(name))


def _arrow_names(frame: Any) -> list[str]:
    names: list[str] = frame.schema.names
    return names


_LIBRARIES = {
    ("pandas", "DataFrame"): Library(
        lambda frame: [*frame.columns], lambda frame, name: frame[name].tolist(), _beside_pandas
    ),
    ("polars", "DataFrame"): Library(
        lambda frame: frame.columns, lambda frame, name: frame.get_column(name).to_list(), _beside_polars
    ),
    ("pyarrow", "Table"): Library(
        _arrow_names,
        _arrow_values,
        lambda frame, scores: pa.table(
            [*frame.columns, *scores.columns], schema=pa.schema([*frame.schema, *scores.schema])
        ),
    ),
    ("pyarrow", "RecordBatch"): Library(_arrow_names, _arrow_values, _beside_batch),
}

"""Parquet as planning sees it: footers."""

from collections.abc import Sequence
from typing import BinaryIO

import pyarrow.parquet as pq

from batch_job.inputs import ids

#: Timestamps whose nanoseconds Spark would drop.
_INT96 = "INT96"


def problem(content: BinaryIO, names: Sequence[str]) -> str:
    """Why a file cannot be read, from its schema; empty when it can. The first name is that of the ids."""
    footer = pq.read_metadata(content)
    schema = footer.schema.to_arrow_schema()
    for name in names:
        found = schema.get_all_field_indices(name)
        if not found:
            return f"has no column {name!r}; it has {', '.join(schema.names)}"
        if len(found) > 1:
            return f"has column {name!r} more than once"
    if _column(footer, names[0]).physical_type == _INT96:
        return ids.not_read(names[0], f"timestamp ({_INT96})")
    return ids.problem({name: schema.field(name).type for name in names}, names)


def id_type(content: BinaryIO, name: str) -> str:
    """The type of the ids of a file without a problem."""
    footer = pq.read_metadata(content)
    if _column(footer, name).logical_type.type == "UUID":
        # Arrow calls those of other writers by their size.
        return ids.UUID
    return ids.type_of(footer.schema.to_arrow_schema().field(name).type) or ids.TEXT


def rows(content: BinaryIO) -> int:
    return int(pq.read_metadata(content).num_rows)


def _column(footer: pq.FileMetaData, name: str) -> pq.ColumnSchema:
    """What Parquet says of a column; of a nested one, of its first leaf."""
    columns = (footer.schema.column(number) for number in range(len(footer.schema)))
    return next(column for column in columns if column.path == name or column.path.startswith(f"{name}."))

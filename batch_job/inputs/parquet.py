"""Parquet as planning sees it: footers, and the headers of pages."""

from collections.abc import Collection, Sequence
from typing import BinaryIO

import pyarrow.parquet as pq

from batch_job.inputs import ids

#: Timestamps whose nanoseconds Spark would drop.
_INT96 = "INT96"

#: Of Thrift's compact protocol: more bytes of this number follow; the next field is a number.
_MORE, _NEXT_IS_NUMBER = 0x80, 0x15


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
    """What the ids of a file without a problem are."""
    footer = pq.read_metadata(content)
    if _column(footer, name).logical_type.type == "UUID":
        # Arrow calls those of other writers by their size.
        return ids.UUID
    return ids.type_of(footer.schema.to_arrow_schema().field(name).type) or ids.TEXT


def rows(content: BinaryIO) -> int:
    return int(pq.read_metadata(content).num_rows)


def unchecked(content: BinaryIO, names: Collection[str]) -> bool:
    """Whether a page of these columns carries no checksum: then a flipped bit reads back as another value.

    Costs the footer and 32 bytes of each column's part of each row group: one writer wrote all pages of a part, but the
    row groups of a file may come from several.
    """
    footer = pq.read_metadata(content)
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    chunks = (group.column(number) for group in groups for number in range(group.num_columns))
    read = (chunk for chunk in chunks if chunk.path_in_schema in names and chunk.num_values)
    return not all(_has_checksum(content, chunk.dictionary_page_offset or chunk.data_page_offset) for chunk in read)


def _has_checksum(content: BinaryIO, offset: int) -> bool:
    """Raises: ValueError where no page header begins there."""
    content.seek(offset)
    header, at = content.read(32), 0
    # Thrift: three numbers (type, size, compressed size), each after a byte that names it; then perhaps the checksum's.
    try:
        for _ in range(3):
            at += 1
            while header[at] & _MORE:
                at += 1
            at += 1
        return header[at] == _NEXT_IS_NUMBER
    except IndexError as error:
        raise ValueError(f"no page begins at byte {offset}") from error


def _column(footer: pq.FileMetaData, name: str) -> pq.ColumnSchema:
    """What Parquet says of a column; of a nested one, of its first leaf."""
    columns = (footer.schema.column(number) for number in range(len(footer.schema)))
    return next(column for column in columns if column.path == name or column.path.startswith(f"{name}."))

"""Parquet as planning sees it: footers, and the headers of pages."""

from collections.abc import Collection, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

#: Of Thrift's compact protocol: more bytes of this number follow; the next field is a number.
_MORE, _NEXT_IS_NUMBER = 0x80, 0x15


def problem(content: BinaryIO, names: Sequence[str]) -> str:
    """Why a file cannot be read, from its schema; empty when it can."""
    schema = pq.read_schema(content)
    for name in names:
        found = schema.get_all_field_indices(name)
        if not found:
            return f"has no column {name!r}; it has {', '.join(schema.names)}"
        if len(found) > 1:
            return f"has column {name!r} more than once"
        if not _is_text(schema.field(found[0]).type):
            return f"has column {name!r} as {schema.field(found[0]).type}, not as string"
    return ""


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


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return kind in (pa.string(), pa.large_string(), pa.string_view())

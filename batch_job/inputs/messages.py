"""Rows of the input → messages, or a reason why not. Every row is exactly one of the two."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from batch_job.run_record import COLUMNS, Columns
from shared_model.types import MAX_TEXT_BYTES


class Reason(StrEnum):
    """Why a row was quarantined."""

    EMPTY = "empty"
    BAD_JSON = "bad_json"
    WRONG_TYPE = "wrong_type"
    BAD_ENCODING = "bad_encoding"
    TOO_LONG = "too_long"
    DUPLICATE_ID = "duplicate_id"
    POISON = "poison"


class Message(NamedTuple):
    """`pair`: the second text, where the input holds pairs."""

    id: str
    text: str
    pair: str | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """A number as JSON spells it: an id may have more digits than a float holds."""

    spelled: str


#: One for all lines: `json.loads` would make one for each.
_DECODER = json.JSONDecoder(parse_int=Number, parse_float=Number)


class Unreadable(Exception):
    """A row that is no message; `reason` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


def read_line(line: bytes, columns: Columns = COLUMNS) -> Message:
    """One line of JSON Lines. Raises: Unreadable."""
    return read_record(parse_line(line), columns)


def parse_line(line: bytes) -> object:
    """Its value, each number as a Number. Raises: Unreadable unless the line is JSON."""
    try:
        content = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(Reason.BAD_ENCODING) from error
    if not content.strip():
        raise Unreadable(Reason.EMPTY)
    try:
        return _DECODER.decode(content)
    except (ValueError, RecursionError) as error:
        raise Unreadable(Reason.BAD_JSON) from error


def read_record(record: object, columns: Columns = COLUMNS) -> Message:
    """One row as a mapping of its columns. Raises: Unreadable."""
    if not isinstance(record, dict):
        raise Unreadable(Reason.WRONG_TYPE)
    message_id = id_text(record.get(columns.id))
    if not isinstance(message_id, str) or not message_id:
        raise Unreadable(Reason.WRONG_TYPE)
    texts = checked_texts([record.get(name) for name in columns.names[1:]])
    utf8_sizes([message_id])
    return Message(message_id, *texts)


def checked_texts(values: Sequence[object]) -> list[str]:
    """The texts of one row, if they are texts that a model can be given. Raises: Unreadable."""
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values):
        raise Unreadable(Reason.WRONG_TYPE)
    if max(utf8_sizes(texts)) > MAX_TEXT_BYTES:
        raise Unreadable(Reason.TOO_LONG)
    if not all(text.strip() for text in texts):
        raise Unreadable(Reason.EMPTY)
    return texts


def utf8_sizes(texts: Sequence[str]) -> list[int]:
    """Bytes of each text. Raises: Unreadable for half a surrogate pair, which JSON can spell: it has no UTF-8."""
    try:
        return [len(text.encode()) for text in texts]
    except UnicodeEncodeError as error:
        raise Unreadable(Reason.BAD_ENCODING) from error


def id_text(value: object) -> object:
    """An id as text where it is a number or a truth value."""
    if isinstance(value, Number):
        return value.spelled
    return json.dumps(value) if isinstance(value, bool) else value


def as_text(value: bytes | None) -> str | None:
    """A column's bytes; those that are no UTF-8 become half surrogate pairs, which `read_record` finds."""
    return None if value is None else value.decode("utf-8", "surrogateescape")


def as_json(row: Mapping[str, str | None]) -> bytes:
    """A row of a table for the quarantine; what was no UTF-8 is in it as it was."""
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogateescape")

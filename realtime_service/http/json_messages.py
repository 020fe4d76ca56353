"""Converts JSON to messages and back, by their descriptors. Every error names the field.

Unlike protobuf's own converter: 64-bit numbers are numbers; in answers scalars are always there, and empty lists and
unset parts never; an unknown field is refused; no text of the library reaches a caller.
"""

import functools
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from realtime_service.transport.messages import MAX_FIELDS, SMALL_BYTES, check_size
from shared_model.errors import BadInput

Kind = TypeVar("Kind", bound=Message)

_INTEGERS = (
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
)
_NAMES = {
    FieldDescriptor.CPPTYPE_STRING: "a string",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    **dict.fromkeys(_INTEGERS, "a whole number"),
}


def decode(raw: bytes) -> dict[str, Any]:
    """A body as a JSON object. One of many small values takes 30 times its size in memory, so they are counted first.

    Raises: MessageTooLarge; BadInput.
    """
    check_size(len(raw))
    if len(raw) > SMALL_BYTES and _has_more_values(raw, MAX_FIELDS):
        raise BadInput("body", f"has more than {MAX_FIELDS} values")
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadInput("body", f"is not valid JSON at byte {error.pos}") from None
    if not isinstance(found, dict):
        raise BadInput("body", "must be a JSON object")
    return found


def encode(answer: Mapping[str, Any]) -> bytes:
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def message(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """Raises: BadInput."""
    made = kind()
    _fill(made, values, "")
    return made


def shown(answer: Message) -> dict[str, Any]:
    """A message for `encode`."""
    found: dict[str, Any] = {}
    for name, show, presence in _shows(answer.DESCRIPTOR):
        if presence and not answer.HasField(name):
            continue
        value = getattr(answer, name)
        if show is None:
            found[name] = value
        elif (made := show(value)) is not None:
            found[name] = made
    return found


def _has_more_values(raw: bytes, most: int) -> bool:
    """Counted at the speed of memory, because the event loop waits for it."""
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * most:
        return True
    outside = plain.split(b'"')[::2]
    return sum(part.count(mark) for part in outside for mark in (b",", b"[", b"{")) > most


def _fill(made: Message, values: Mapping[str, Any], prefix: str) -> None:
    fields: Mapping[str, Any] = made.DESCRIPTOR.fields_by_name
    for name, value in values.items():
        field, path = fields.get(name), f"{prefix}{name}"
        if field is None:
            raise BadInput(path[:64], f"is unknown; there are {', '.join(fields)}")
        if value is None:
            continue
        if field.is_repeated:
            if not isinstance(value, list):
                raise BadInput(path, "must be a list")
            getattr(made, name).extend(_scalar(field, item, f"{path}[{index}]") for index, item in enumerate(value))
        elif field.message_type:
            if not isinstance(value, dict):
                raise BadInput(path, "must be an object")
            _fill(getattr(made, name), value, f"{path}.")
        else:
            try:
                setattr(made, name, _scalar(field, value, path))
            except ValueError:
                raise BadInput(path, f"is {value}, which is out of range") from None


def _scalar(field: FieldDescriptor, value: Any, path: str) -> Any:
    """Requests have strings, whole numbers, flags and names of an enum. Raises: BadInput."""
    if field.enum_type:
        if value not in field.enum_type.values_by_name:
            names = ", ".join(it.name for it in field.enum_type.values if it.number)
            raise BadInput(path, f"is no name of one; use {names}")
        return field.enum_type.values_by_name[value].number
    kind = type(value)
    wanted = {FieldDescriptor.CPPTYPE_STRING: str, FieldDescriptor.CPPTYPE_BOOL: bool}.get(field.cpp_type, int)
    if kind is not wanted:
        raise BadInput(path, f"must be {_NAMES[field.cpp_type]}")
    return value


@functools.cache
def _shows(descriptor: Descriptor) -> list[tuple[str, Any, bool]]:
    """Of each field its name, the function that shows its value (None: it is shown as it is; one that returns None
    leaves it out), and whether it may be unset."""
    return [(field.name, _show(field), field.has_presence) for field in descriptor.fields]


def _show(field: FieldDescriptor) -> Any:
    if field.message_type and field.message_type.GetOptions().map_entry:
        inner = _show(field.message_type.fields_by_name["value"]) or (lambda value: value)
        return lambda values: {key: inner(value) for key, value in sorted(values.items())} or None
    if field.message_type:
        return (lambda values: [shown(it) for it in values] or None) if field.is_repeated else shown
    if field.is_repeated:
        if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
            return lambda values: np.array(values, np.float32) if values else None
        return lambda values: list(values) or None
    if field.enum_type:
        names = field.enum_type.values_by_number
        # An enum of a later version may have more.
        return lambda number: names[number].name if number in names else number
    # As single precision, which is shown with the fewest digits that name it.
    return np.float32 if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT else None

"""Reads the fields of a serialised message one by one, without parsing it: each costs the same, whatever its size."""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_GROUP, _END_OF_GROUP = 3, 4
_OF_BYTES = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE}
_LONGEST_VARINT = 10
#: Messages inside messages; what is deeper counts as one field.
_DEEPEST = 8


class Field(NamedTuple):
    """`name`: like "request.texts[0]". `descriptor`: None for an unknown field. `content`: its bytes; None for numbers
    and for messages, whose own fields follow."""

    name: str
    descriptor: Any
    content: bytes | memoryview | None


def fields(descriptor: Descriptor, raw: bytes | memoryview, prefix: str = "", depth: int = 0) -> Iterator[Field]:
    """The fields of a message and of the messages in it, in their order, up to the first damaged one. Their contents
    are copies; of a view, views. As to a parser, a field whose bytes are not of its type, or that is in a group, is
    unknown."""
    seen: dict[int, int] = {}
    at = groups = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        kind, number = tag & 7, tag >> 3
        size, at = _varint(raw, at) if kind == _BYTES else (_size(raw, at, kind), at)
        if tag < 0 or size < 0 or at + size > len(raw):
            return
        groups += {_GROUP: 1, _END_OF_GROUP: -1}.get(kind, 0)
        known = None if groups else cast(Any, descriptor.fields_by_number.get(number))
        if known is not None and known.type in _OF_BYTES and kind != _BYTES:
            known = None
        if known is not None:
            index = seen[number] = seen.get(number, -1) + 1
        name = "" if known is None else f"{prefix}{known.name}[{index}]" if known.is_repeated else prefix + known.name
        content = raw[at : at + size] if kind == _BYTES else None
        at += size
        inner: Descriptor | None = known.message_type if known is not None and depth < _DEEPEST else None
        yield Field(name, known, None if inner else content)
        if inner and content:
            yield from fields(inner, content, f"{name}.", depth + 1)


def _varint(raw: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number and the place after it; -1 for a damaged one."""
    value = 0
    for place, byte in enumerate(raw[at : at + _LONGEST_VARINT]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    return -1, at


def _size(raw: bytes | memoryview, at: int, kind: int) -> int:
    """Bytes of a field without a length; -1 for a damaged one. The ends of a group count as fields of their own."""
    if kind == _VARINT:
        return _varint(raw, at)[1] - at or -1
    return {_FIXED64: 8, _FIXED32: 4, _GROUP: 0, _END_OF_GROUP: 0}.get(kind, -1)

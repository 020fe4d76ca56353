"""Messages that a parser reads and no client sends: fields in any order, twice, of wrong types, unknown, in groups."""

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import strategies as st

_STRINGS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
#: Of no field.
_UNKNOWN = 99


def inside(number: int, content: bytes) -> bytes:
    """A field that holds bytes or a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    shown = b""
    while number > 127:
        shown, number = shown + bytes((number & 127 | 128,)), number >> 7
    return shown + bytes((number,))


def odd_messages(kind: type[Message]) -> st.SearchStrategy[bytes]:
    def readable(raw: bytes) -> bool:
        try:
            kind.FromString(raw)  # type: ignore[attr-defined]
        except DecodeError:
            return False
        return True

    return _messages(kind.DESCRIPTOR, 2).filter(readable)  # type: ignore[arg-type]


def _messages(descriptor: Descriptor, depth: int) -> st.SearchStrategy[bytes]:
    numbers = st.sampled_from([*descriptor.fields_by_number, _UNKNOWN])
    texts = st.text(max_size=2).map(str.encode) | st.integers(0, 600).map(lambda size: b"a" * size)
    known = [_field(it, texts, depth) for it in descriptor.fields if it.type in _STRINGS or it.message_type]
    mistyped = st.builds(lambda number, value: varint(number << 3) + varint(value), numbers, st.integers(0, 300))
    plain = st.lists(st.one_of(*known, mistyped), max_size=8).map(b"".join)
    grouped = st.builds(
        lambda number, content: varint(number << 3 | 3) + content + varint(number << 3 | 4), numbers, plain
    )
    return st.lists(plain | grouped, max_size=3).map(b"".join)


def _field(field: FieldDescriptor, texts: st.SearchStrategy[bytes], depth: int) -> st.SearchStrategy[bytes]:
    if field.message_type is None:
        return texts.map(lambda content: inside(field.number, content))
    inner = _messages(field.message_type, depth - 1) if depth else st.just(b"")
    return inner.map(lambda content: inside(field.number, content))

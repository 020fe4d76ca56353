"""Protobuf's encoding of a field that holds bytes, for messages made of encoded parts."""

import functools


def tag(number: int) -> bytes:
    """The begin of a field whose content is a string, bytes or a message. `number`: of the field."""
    return _varint(number << 3 | 2)


def field(of: bytes, content: bytes) -> bytes:
    """`of`: its tag."""
    return of + _varint(len(content)) + content


@functools.lru_cache(maxsize=4096)
def _varint(number: int) -> bytes:
    low = bytearray()
    while number > 0x7F:
        low.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*low, number))

"""Decompresses requests. gRPC would do it before any handler runs, for as many calls at once as arrive.

A message of this service never begins as a compressed one does: field 3 has no type 7, and there is no field 15.
"""

import zlib

from realtime_service.transport.messages import MAX_MESSAGE_BYTES, SMALL_BYTES, check_size
from shared_model.errors import BadInput

_GZIP = b"\x1f\x8b"
#: The first byte of what gRPC calls deflate; the first two are a multiple of 31.
_ZLIB = 0x78
_EITHER_FORMAT = zlib.MAX_WBITS + 32


def is_compressed(raw: bytes) -> bool:
    """Whether a message came compressed, by gzip or deflate."""
    start = raw[:2]
    return start == _GZIP or (len(start) == 2 and start[0] == _ZLIB and int.from_bytes(start) % 31 == 0)


def parsed_size(raw: bytes) -> int:
    """Bytes that a message takes at most, once decompressed: one of gzip says it at its end."""
    if raw.startswith(_GZIP):
        return int.from_bytes(raw[-4:], "little")
    return MAX_MESSAGE_BYTES if is_compressed(raw) else len(raw)


def small(raw: bytes) -> bytes:
    """A message of a method that takes no large ones, from anybody. Raises: as `decompress`."""
    if is_compressed(raw):
        return decompress(raw, SMALL_BYTES)
    check_size(len(raw), SMALL_BYTES)
    return raw


def decompress(raw: bytes, most_bytes: int) -> bytes:
    """Raises: MessageTooLarge; BadInput for damage."""
    stream = zlib.decompressobj(_EITHER_FORMAT)
    try:
        # 0 would stand for "without limit".
        message = stream.decompress(raw, most_bytes + 1)
    except zlib.error as error:
        raise BadInput("request", f"cannot be decompressed: {error}") from error
    check_size(len(message), most_bytes)
    if not stream.eof or stream.unused_data:
        raise BadInput("request", "cannot be decompressed: its end is missing, or something follows it")
    return message

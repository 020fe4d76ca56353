"""Unary gRPC calls over one HTTP/2 connection, as bytes: no I/O, no clock.

A load generator must not eat the cores it measures. grpc.aio spends as much CPU on a call as a server does; this
spends a third of it, because all calls go to one method and only their status is wanted of the answers.
"""

import struct
from dataclasses import dataclass

#: A call that ended without a gRPC status: reset, or cut off with its connection.
LOST = -1

#: Largest frame that every peer accepts.
MAX_MESSAGE_BYTES = 16_384 - 5

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 8, 9
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_CANCEL = struct.pack(">I", 8)
#: SETTINGS: no dynamic table for answers' headers, so that each block can be read alone; no push; no stream windows.
_OUR_SETTINGS = struct.pack(">HIHIHI", 1, 0, 2, 0, 4, 2**31 - 1)
_MORE_WINDOW = 2**31 - 1 - 65_535
_FRAME_HEAD = 9


@dataclass(frozen=True, slots=True)
class Prepared:
    """A message as it is sent: what comes before and after the stream's number in its DATA frame."""

    head: bytes
    body: bytes


def prepare(message: bytes) -> Prepared:
    """Raises: ValueError for a message that takes more than one frame."""
    if len(message) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {len(message)} bytes takes more than one frame; this client sends one")
    body = b"\0" + struct.pack(">I", len(message)) + message
    return Prepared(len(body).to_bytes(3, "big") + bytes((_DATA, _END_STREAM)), body)


class Wire:
    """One connection that calls one method. `outgoing`: bytes to write to the peer; the writer clears them."""

    def __init__(
        self, authority: str, path: str | bytes, timeout_ms: int, token: str = "", caller_id: bytes = b""
    ) -> None:
        """`timeout_ms`: the gRPC deadline of every call; `token`: proves who calls, empty for an anonymous caller;
        `caller_id`: the name that it claims. Bytes may be no UTF-8."""
        self.outgoing = bytearray(_PREFACE + _frame(_SETTINGS, 0, 0, _OUR_SETTINGS))
        self.outgoing += _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _MORE_WINDOW))
        self._first, self._again = _request_headers(authority, path, timeout_ms, token, caller_id)
        self._next = 1
        self._unread = b""
        self._credit = 65_535
        self._held: list[bytes] = []
        self._good = b""

    def call(self, message: Prepared) -> int:
        """Begin a call: the number of its stream."""
        stream = self.open()
        self._held.append(b"".join((message.head, struct.pack(">I", stream), message.body)))
        self._release()
        return stream

    def open(self) -> int:
        """Begin a call whose message does not follow: the number of its stream."""
        block, self._first = self._first or self._again, b""
        stream, self._next = self._next, self._next + 2
        self.outgoing += _frame(_HEADERS, _END_HEADERS, stream, block)
        return stream

    def reset(self, stream: int) -> None:
        """Cancel a call."""
        self.outgoing += _frame(_RST_STREAM, 0, stream, _CANCEL)

    def receive(self, data: bytes) -> list[tuple[int, int]]:
        """Take what the peer sent: (stream, status) of the calls that ended."""
        data, at, ended = self._unread + data, 0, list[tuple[int, int]]()
        while len(data) - at >= _FRAME_HEAD:
            end = at + _FRAME_HEAD + int.from_bytes(data[at : at + 3], "big")
            if end > len(data):
                break
            kind, flags = data[at + 3], data[at + 4]
            if kind != _DATA:
                stream = int.from_bytes(data[at + 5 : at + 9], "big")
                status = self._take(kind, flags, stream, data[at + _FRAME_HEAD : end])
                if status is not None:
                    ended.append((stream, status))
            at = end
        self._unread = data[at:]
        return ended

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> int | None:
        """The status of the call that this frame ends, None where it ends none."""
        if kind == _HEADERS:
            return self._status(payload) if flags & _END_STREAM else None
        if kind == _RST_STREAM:
            return LOST
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            self.outgoing += _frame(kind, _ACK, 0, payload if kind == _PING else b"")
        elif kind == _WINDOW_UPDATE and not stream:
            self._credit += int.from_bytes(payload, "big")
            self._release()
        elif kind == _CONTINUATION:
            raise ValueError("the peer sends headers in several frames, which this client cannot read")
        return None

    def _release(self) -> None:
        """Send what the connection's window has room for."""
        while self._held and len(self._held[0]) - _FRAME_HEAD <= self._credit:
            frame = self._held.pop(0)
            self._credit -= len(frame) - _FRAME_HEAD
            self.outgoing += frame

    def _status(self, block: bytes) -> int:
        if block == self._good:
            return 0
        status = int(find_header(block, b"grpc-status") or LOST)
        if status == 0:
            self._good = block
        return status


def find_header(block: bytes, wanted: bytes) -> bytes | None:
    """The value of a header that is spelled out in a block (HPACK, no dynamic table, no Huffman coding)."""
    at = 0
    while at < len(block):
        first = block[at]
        if first & 0x80:  # both from the static table
            _, at = _integer(block, at, 7)
            continue
        if first & 0xE0 == 0x20:  # a new size of the dynamic table
            _, at = _integer(block, at, 5)
            continue
        index, at = _integer(block, at, 6 if first & 0x40 else 4)
        name, at = (b"", at) if index else _string(block, at)
        value, at = _string(block, at)
        if name == wanted:
            return value
    return None


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """(number, where the next item starts): RFC 7541, 5.1."""
    value, at = block[at] & (1 << bits) - 1, at + 1
    if value < (1 << bits) - 1:
        return value, at
    shift = 0
    while True:
        byte, at = block[at], at + 1
        value += (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    length, at = _integer(block, at, 7)
    return block[at : at + length], at + length


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _request_headers(
    authority: str, path: str | bytes, timeout_ms: int, token: str, caller_id: bytes
) -> tuple[bytes, bytes]:
    """The header blocks of the first call and of all others, which refer to what the first put into the table."""
    kept = [
        b"\x44" + _text(path),
        b"\x41" + _text(authority),
        b"\x40" + _text("te") + _text("trailers"),
        b"\x5f" + _text("application/grpc"),
    ]
    if token:
        kept.append(b"\x40" + _text("authorization") + _text(f"Bearer {token}"))
    if caller_id:
        kept.append(b"\x40" + _text("x-caller-id") + _text(caller_id))
    post_http, timeout = b"\x83\x86", b"\x00" + _text("grpc-timeout") + _text(f"{timeout_ms}m")
    # The newest entry of the dynamic table is number 62.
    indexed = bytes(0x80 | 62 + len(kept) - 1 - n for n in range(len(kept)))
    return post_http + b"".join(kept) + timeout, post_http + indexed + timeout


def _text(value: str | bytes) -> bytes:
    encoded = value.encode() if isinstance(value, str) else value
    return _length(len(encoded)) + encoded


def _length(length: int) -> bytes:
    """An integer with a prefix of seven bits."""
    if length < 0x7F:
        return bytes((length,))
    encoded, rest = bytearray(b"\x7f"), length - 0x7F
    while rest >= 0x80:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*encoded, rest))

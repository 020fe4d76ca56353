"""The index of an epoch by message id: one hash of Redis whose fields are blocks of entries.

An entry is a mark, 8 bytes of the id's hash, and the encoding key of the message's text. A block holds the entries
whose ids fall into it, about 64: a field for each id would take five times as much memory.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

MARK_BYTES, KEY_BYTES = 8, 16
ENTRY_BYTES = MARK_BYTES + KEY_BYTES
ENTRIES_OF_BLOCK = 64
#: Memory that Redis takes for an entry: its share of the block's field, and the allocator's rounding.
STORED_BYTES = 33


class MessageIds(Protocol):
    """The messages of a partition, by its texts, which are ordered: those with the first text are of rank 0."""

    def times(self, rank: int) -> int:
        """How many messages have a text."""

    def entries(self, ranks: int) -> Iterator[tuple[str, bytes]]:
        """The id of each message that has one of the first so many texts, and the text's encoding key."""


class NoIds:
    """An epoch without an index."""

    def times(self, rank: int) -> int:
        return 0

    def entries(self, ranks: int) -> Iterator[tuple[str, bytes]]:
        return iter(())


def blocks_of(entries: Iterable[tuple[str, bytes]], count: int) -> Iterator[tuple[bytes, bytes]]:
    """The blocks that hold any entry, by field. `count`: of all blocks."""
    blocks: dict[bytes, bytearray] = defaultdict(bytearray)
    for message_id, key in entries:
        field, mark = place(message_id, count)
        blocks[field] += mark + key
    return ((field, bytes(block)) for field, block in blocks.items())


def place(message_id: str, count: int) -> tuple[bytes, bytes]:
    """The field of an id's block, and its mark. `count`: of all blocks."""
    digest = hashlib.blake2b(message_id.encode(), digest_size=16).digest()
    number = int.from_bytes(digest[MARK_BYTES:], "little") % count
    return number.to_bytes(4, "little"), digest[:MARK_BYTES]


def keys_in(blocks: Sequence[bytes | None], marks: Sequence[bytes]) -> list[bytes | None]:
    """The encoding key of each mark in its block; None where it is not there."""
    return [_key_in(block or b"", mark) for block, mark in zip(blocks, marks, strict=True)]


def _key_in(block: bytes, mark: bytes) -> bytes | None:
    start = block.find(mark)
    # Found across entries, or in a key, it is another one's.
    while start >= 0 and start % ENTRY_BYTES:
        start = block.find(mark, start + 1)
    return block[start + MARK_BYTES : start + ENTRY_BYTES] if start >= 0 else None

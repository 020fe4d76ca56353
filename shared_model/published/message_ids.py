"""The index of an epoch by message id: one hash of Redis whose fields are blocks of entries.

An entry is a mark, 8 bytes of the id's hash, and the encoding key of the message's text. A block holds the entries
whose ids fall into it, about 32: a field for each id would take five times as much memory.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

FIELD_BYTES, MARK_BYTES, KEY_BYTES = 4, 8, 16
ENTRY_BYTES = MARK_BYTES + KEY_BYTES
ENTRIES_OF_BLOCK = 32
#: Memory that Redis takes for an entry: its share of the block's field, and the allocator's rounding.
STORED_BYTES = 34
#: Reads the scores of messages, in one round trip.
FIND = (Path(__file__).parent / "lua" / "find_messages.lua").read_text()


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
    return number.to_bytes(FIELD_BYTES, "little"), digest[:MARK_BYTES]


def question(scores: str, index: str, ids: Sequence[str], count: int) -> list[str | bytes | int]:
    """The arguments of `find_messages.lua`. `scores`, `index`: names of an epoch's hashes; `count`: of all blocks."""
    # One argument for all ids: redis-py spends half a microsecond on each.
    places = b"".join(part for it in ids for part in place(it, count))
    return [index, scores, FIELD_BYTES, MARK_BYTES, ENTRY_BYTES, places]

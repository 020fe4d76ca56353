"""What a worker has on its device, written where the supervisor can read it after the worker's death.

Memory that both processes share, in slots. A slot is written before an engine runs and cleared after: a few
microseconds, no system call, no disk. What is in a slot when its process is gone was running when it died.

    slot:  state u32 (0 free, 1 running) · length u32 · release · row · row · …
    row:   bytes of ids u32 · bytes of types u32 · ids int32… · types int32…
"""

import contextlib
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared_model.redis_store import keys

if TYPE_CHECKING:
    from shared_model.encoding import Encoding

#: Units that run at once, at most: one a stream.
SLOTS = 64
#: Room for 64 texts of 2,000 tokens. Pages nobody has written take no memory.
SLOT_BYTES = 1 << 20

_SLOT = struct.Struct("<II")
_LENGTHS = struct.Struct("<II")
_FREE, _RUNNING = 0, 1

#: Records what runs while its context lasts, from the release's id and the texts' encodings.
Recorder = Callable[[str, "Sequence[Encoding]"], AbstractContextManager[None]]


def unrecorded(release: str, encodings: "Sequence[Encoding]") -> AbstractContextManager[None]:
    """For a process that nobody examines after its death."""
    return contextlib.nullcontext()


@dataclass(frozen=True, slots=True)
class Suspect:
    """One text that was on the device when a worker died, as its model reads it: int32 ids, and types or nothing."""

    release: str
    ids: bytes
    types: bytes

    @property
    def fingerprint(self) -> bytes:
        return keys.encoding(self.release, self.ids, self.types)


def create() -> int:
    """Memory for one worker's journal: a file descriptor that a child may inherit."""
    descriptor = os.memfd_create("tandem-journal")
    os.ftruncate(descriptor, SLOTS * SLOT_BYTES)
    return descriptor


class Journal:
    """The worker's side. Safe to use from several threads, each with a unit of its own."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SLOTS * SLOT_BYTES)
        self._free = list(range(SLOTS))

    @contextlib.contextmanager
    def running(self, release: str, encodings: "Sequence[Encoding]") -> Iterator[None]:
        """Texts are on the device while this context lasts. Those that do not fit into a slot are not written."""
        slot = self._free.pop()
        start = slot * SLOT_BYTES
        written = pack(release, [_row(encoding) for encoding in encodings], SLOT_BYTES - _SLOT.size)
        self._memory[start + _SLOT.size : start + _SLOT.size + len(written)] = written
        # Last, in one store: a slot that says "running" is whole.
        _SLOT.pack_into(self._memory, start, _RUNNING, len(written))
        try:
            yield
        finally:
            _SLOT.pack_into(self._memory, start, _FREE, 0)
            self._free.append(slot)


def read(descriptor: int) -> list[Suspect]:
    """What was running, from the journal of a process that is gone; each text once."""
    suspects: dict[bytes, Suspect] = {}
    with mmap.mmap(descriptor, SLOTS * SLOT_BYTES, prot=mmap.PROT_READ) as memory:
        for start in range(0, len(memory), SLOT_BYTES):
            state, length = _SLOT.unpack_from(memory, start)
            if state == _RUNNING:
                written = memory[start + _SLOT.size : start + _SLOT.size + length]
                suspects |= {suspect.fingerprint: suspect for suspect in unpack(written)}
    return list(suspects.values())


def pack(release: str, rows: Sequence[tuple[bytes, bytes]], room: int) -> bytes:
    """One release's texts, (ids, types) each: as many as fit into `room` bytes."""
    name = release.encode()
    parts, size = [_LENGTHS.pack(len(name), 0), name], _LENGTHS.size + len(name)
    for ids, types in rows:
        size += _LENGTHS.size + len(ids) + len(types)
        if size > room:
            break
        parts += (_LENGTHS.pack(len(ids), len(types)), ids, types)
    return b"".join(parts)


def unpack(written: bytes) -> Iterator[Suspect]:
    length, _ = _LENGTHS.unpack_from(written)
    at = _LENGTHS.size + length
    release = written[_LENGTHS.size : at].decode()
    while at < len(written):
        ids, types = _LENGTHS.unpack_from(written, at)
        at += _LENGTHS.size
        yield Suspect(release, written[at : at + ids], written[at + ids : at + ids + types])
        at += ids + types


def _row(encoding: "Encoding") -> tuple[bytes, bytes]:
    return encoding.ids.tobytes(), b"" if encoding.types is None else encoding.types.tobytes()

"""Texts that are refused because of a worker's death, in memory that the supervisor writes and all workers read.

Suspects are refused for the seconds in which they are examined, the guilty for minutes. It is empty nearly always, and
then a look costs one comparison.

    version u64, odd while it is being written · entries u32 · entry · entry · …
    entry:  fingerprint 16 bytes · end f64, monotonic seconds · verdict u8
"""

import mmap
import os
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from realtime_service.errors import ReplicaUnavailable
from shared_model.encoding import Encoder, Encoding
from shared_model.errors import BadInput

_HEADER = struct.Struct("<QI")
_ENTRY = struct.Struct("<16sdB")
#: More texts than that have not been found guilty within minutes; the oldest would leave first.
CAPACITY = 4096
_BYTES = _HEADER.size + CAPACITY * _ENTRY.size


class Verdict(IntEnum):
    SUSPECT = 1
    GUILTY = 2


@dataclass(frozen=True, slots=True)
class Held:
    """`until`: monotonic seconds, which all processes of a host share."""

    until: float
    verdict: Verdict


def create() -> int:
    """Memory for one service's quarantine: a file descriptor that children may inherit."""
    descriptor = os.memfd_create("tandem-quarantine")
    os.ftruncate(descriptor, _BYTES)
    return descriptor


class QuarantineList:
    """The supervisor's side: the only writer."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _BYTES)
        self._held: dict[bytes, Held] = {}
        self._version = 0

    def hold(self, fingerprints: Sequence[bytes], verdict: Verdict, seconds: float) -> None:
        """Refuse texts from now on. What is guilty stays guilty while it is suspected again."""
        until = time.monotonic() + seconds
        for fingerprint in fingerprints:
            known = self._held.get(fingerprint)
            if not (verdict is Verdict.SUSPECT and known and known.verdict is Verdict.GUILTY):
                self._held[fingerprint] = Held(until, verdict)
        self._write()

    def release(self, fingerprints: Sequence[bytes]) -> None:
        """Suspects that were examined and survived."""
        for fingerprint in fingerprints:
            if (known := self._held.get(fingerprint)) and known.verdict is Verdict.SUSPECT:
                del self._held[fingerprint]
        self._write()

    def _write(self) -> None:
        now = time.monotonic()
        kept = {key: held for key, held in self._held.items() if held.until > now}
        self._held = dict(list(kept.items())[-CAPACITY:])
        _HEADER.pack_into(self._memory, 0, self._version + 1, 0)
        for index, (key, held) in enumerate(self._held.items()):
            _ENTRY.pack_into(self._memory, _HEADER.size + index * _ENTRY.size, key, held.until, held.verdict)
        self._version += 2
        _HEADER.pack_into(self._memory, 0, self._version, len(self._held))


class Quarantine:
    """The workers' side. Without a descriptor it is empty for ever."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._memory = mmap.mmap(-1 if descriptor is None else descriptor, _BYTES)
        self._version = 0
        self._held: Mapping[bytes, Held] = {}

    def guilty(self) -> int:
        """How many texts are refused for minutes."""
        now = time.monotonic()
        return sum(held.verdict is Verdict.GUILTY and held.until > now for held in self._read().values())

    def check(self, encoder: Encoder, encodings: Sequence[Encoding]) -> None:
        """Raises: BadInput naming the text that is quarantined; ReplicaUnavailable while one is being examined."""
        held = self._read()
        if not held:
            return
        now = time.monotonic()
        for index, encoding in enumerate(encodings):
            found = held.get(encoder.key(encoding))
            if found and found.until > now:
                raise _refusal(index, found, now)

    def _read(self) -> Mapping[bytes, Held]:
        version, count = _HEADER.unpack_from(self._memory)
        if version == self._version or version % 2:
            return self._held
        entries = [_ENTRY.unpack_from(self._memory, _HEADER.size + i * _ENTRY.size) for i in range(count)]
        if _HEADER.unpack_from(self._memory) == (version, count):
            self._held = {key: Held(until, Verdict(verdict)) for key, until, verdict in entries}
            self._version = version
        return self._held


def _refusal(index: int, held: Held, now: float) -> Exception:
    if held.verdict is Verdict.GUILTY:
        left = f"quarantined for another {held.until - now:.0f} s"
        return BadInput(f"texts[{index}]", f"is {left}: it ended a process that scored it")
    return ReplicaUnavailable(f"texts[{index}]: is being examined, because a process ended while it scored it; retry")

"""Finds out which of the texts that were on the device killed a worker: each runs alone, in a process that may die.

    python -m realtime_service.workers.examiner ROOT THREADS SECONDS PRECISION/DEVICE…

The child reads suspects from its input, says the number of each before it runs it, and "done" after the last.
"""

import asyncio
import contextlib
import os
import resource
import signal
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from realtime_service.workers.journal import Suspect, pack, unpack
from shared_model.errors import TandemError
from shared_model.types import Device, Precision

if TYPE_CHECKING:
    from shared_model.engine import Engine

#: Niceness: the workers that live go first.
LOW_PRIORITY = 10
#: A child without a parent ends itself, so much after its limit.
_ORPHAN_SECONDS = 5

_DONE = b"done"
_LENGTH = struct.Struct("<I")

#: Runs suspects one after another in one process; the index of the one that killed it, None if all lived.
Run = Callable[[Sequence[Suspect]], Awaitable[int | None]]


async def find_guilty(suspects: Sequence[Suspect], run: Run) -> list[Suspect]:
    """Those that kill a process alone: one that dies after others may be their victim, and is asked once more."""
    guilty, left = list[Suspect](), list(suspects)
    while left and (killed := await run(left)) is not None:
        suspect = left[killed]
        if killed == 0 or await run([suspect]) == 0:
            guilty.append(suspect)
        left = left[killed + 1 :]
    return guilty


@dataclass(frozen=True)
class Examiner:
    """How this service runs its releases. A run that takes longer than `seconds` tells nothing."""

    root: str
    variants: Mapping[Precision, Device]
    threads: int
    seconds: float

    async def run(self, suspects: Sequence[Suspect]) -> int | None:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__, self.root, str(self.threads), str(self.seconds)),
            *(f"{precision}/{device}" for precision, device in self.variants.items()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            process_group=0,
        )
        try:
            os.setpriority(os.PRIO_PROCESS, child.pid, LOW_PRIORITY)
            output, _ = await asyncio.wait_for(child.communicate(_packed(suspects)), self.seconds)
        except TimeoutError:
            return None
        finally:
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
                await child.wait()
        lines = output.split()
        return None if not lines or lines[-1] == _DONE else int(lines[-1])


def main(arguments: Sequence[str]) -> int:
    root, threads, seconds, *names = arguments
    # A crash is an answer here, not something to debug.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, float(seconds) + _ORPHAN_SECONDS)
    suspects = list(_unpacked(sys.stdin.buffer.read()))
    variants = {Precision(precision): Device(device) for precision, device in (name.split("/") for name in names)}
    try:
        _examine(suspects, root, variants, int(threads))
    except TandemError as error:
        sys.stderr.write(f"no verdict on {len(suspects)} texts: {error}\n")
        return 1
    return 0


def _examine(suspects: Sequence[Suspect], root: str, variants: Mapping[Precision, Device], threads: int) -> None:
    with contextlib.ExitStack() as opened:
        engines = {
            release: _open(opened, root, release, variants, threads)
            for release in sorted({suspect.release for suspect in suspects})
        }
        for index, suspect in enumerate(suspects):
            _say(str(index).encode())
            _score(suspect, engines[suspect.release])
        _say(_DONE)


def _open(
    opened: contextlib.ExitStack, root: str, release_id: str, variants: Mapping[Precision, Device], threads: int
) -> "list[Engine]":
    from realtime_service.models.warmup import open_engine
    from shared_model import settings
    from shared_model.releases.store import Store
    from shared_model.settings import StateSettings

    release = Store.of(settings.load(StateSettings, releases=root)).open(release_id)
    return [
        opened.enter_context(contextlib.closing(open_engine(release, precision, device, threads)))
        for precision, device in variants.items()
    ]


def _score(suspect: Suspect, engines: "Sequence[Engine]") -> None:
    import numpy as np

    from shared_model.encoding import Encoding, collate

    types = np.frombuffer(suspect.types, np.int32) if suspect.types else None
    batch = collate([Encoding(np.frombuffer(suspect.ids, np.int32), truncated=False, types=types)])
    for engine in engines:
        # What only raises is answered with an error in a worker, too, and kills nobody.
        with contextlib.suppress(Exception):
            engine.score(batch)


def _say(line: bytes) -> None:
    # Past every buffer: the next moment may be the last.
    os.write(sys.stdout.fileno(), line + b"\n")


def _packed(suspects: Sequence[Suspect]) -> bytes:
    packed = [pack(suspect.release, [(suspect.ids, suspect.types)], sys.maxsize) for suspect in suspects]
    return b"".join(_LENGTH.pack(len(one)) + one for one in packed)


def _unpacked(data: bytes) -> Iterator[Suspect]:
    at = 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        yield from unpack(data[at - length : at])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

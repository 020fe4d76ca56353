"""Processes that hand in and answer deferred work until they are killed. No model: an answer is the text itself."""

import asyncio
import itertools
import os
import random
from collections.abc import Callable, Coroutine
from ctypes import Array, c_byte
from enum import IntEnum
from pathlib import Path
from typing import Any

from protos.scoring.v1.scoring_pb2 import ScoreRequest, ScoreResponse
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model.deferred import Claimed, DeferredQueue, Submission
from shared_model.redis_store import clients

#: Seconds a consumer may be dead before others take over.
LEASE_SECONDS = 0.3
CHUNK = 8


class Phase(IntEnum):
    """A process's current action, for the test that kills it."""

    STARTING = 0
    SUBMITTING = 1
    CLAIMING = 2
    WORKING = 3
    SCORING = 4
    PUBLISHING = 5


class Log:
    """Lines that outlive the writing process: each is one unbuffered write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(self, *lines: str) -> None:
        os.write(self._file, "".join(f"{line}\n" for line in lines).encode())


def submit(url: str, folder: Path, number: int, phases: "Array[c_byte]", slot: int) -> None:
    """Hand in chunks, and log what was acknowledged."""

    async def run(deferred_queue: DeferredQueue) -> None:
        log = Log(folder / "acknowledged")
        for first in itertools.count(0, CHUNK):
            names = [f"{number}-{first + n}" for n in range(CHUNK)]
            work = [Submission(it, DeferredWork(request=ScoreRequest(texts=[it]))) for it in names]
            phases[slot] = Phase.SUBMITTING
            await deferred_queue.submit_many(work)
            log.add(*names)
            await asyncio.sleep(0.002)

    _run(url, run)


def consume(url: str, folder: Path, number: int, phases: "Array[c_byte]", slot: int) -> None:
    """Claim, answer and publish, and log which answers were kept."""
    draw = random.Random(number)

    async def pause(phase: Phase) -> None:
        phases[slot] = phase
        await asyncio.sleep(draw.random() * 0.01)

    async def run(deferred_queue: DeferredQueue) -> None:
        log = Log(folder / "kept")
        while True:
            await pause(Phase.CLAIMING)
            if claimed := await deferred_queue.claim(f"consumer-{number}", CHUNK, LEASE_SECONDS, again=CHUNK):
                await pause(Phase.WORKING)
                kept = await deferred_queue.store_results([(it, answer_to(it)) for it in claimed], "idle")
                log.add(*(it.request_id for it, was_kept in zip(claimed, kept, strict=True) if was_kept))
                await pause(Phase.SCORING)
                phases[slot] = Phase.PUBLISHING
                await deferred_queue.acknowledge(claimed)

    _run(url, run)


def answer_to(item: Claimed) -> ScoreResponse:
    return ScoreResponse(request_id=item.request_id, reason=item.work.request.texts[0])


def _run(url: str, duty: Callable[[DeferredQueue], Coroutine[Any, Any, None]]) -> None:
    async def connected() -> None:
        async with clients.connect_asyncio(url, timeout=5.0, connect_timeout=5.0) as client:
            await duty(DeferredQueue(client))

    asyncio.run(connected())

"""What `python -m realtime_service dead-letters` does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from realtime_service.process import redis_connections
from shared_model import settings
from shared_model.deferred import DeadLetter, DeadLetters
from shared_model.redis_store.server import RedisServer
from shared_model.settings import DeferredSettings, StateSettings


def listed(count: int) -> list[str]:
    """A line for each of the oldest `count`, and a last one on how many there are. Raises: StoreUnavailable."""

    async def read() -> list[str]:
        lines: list[str] = []
        async with _connected() as letters:
            async for letter in letters.all():
                if len(lines) == count:
                    break
                lines.append(_line(letter))
            return [*lines, f"{await letters.count()} dead letters"]

    return asyncio.run(read())


def replay(request_ids: Sequence[str] | None) -> int:
    """Accept these again, or all; returns how many were. Raises: BadInput naming ids that are no dead letter's, and
    then none is accepted; StoreUnavailable."""

    async def accept() -> int:
        async with _connected() as letters:
            wanted = [it async for it in letters.all()] if request_ids is None else await letters.find(request_ids)
            return await letters.replay(wanted)

    return asyncio.run(accept())


@contextlib.asynccontextmanager
async def _connected() -> AsyncIterator[DeadLetters]:
    state, deferred = settings.load(StateSettings), settings.load(DeferredSettings)
    with RedisServer(state) as server:
        async with redis_connections.default_client(server.url) as client:
            yield DeadLetters(client, deferred)


def _line(letter: DeadLetter) -> str:
    texts = len(letter.work.request.texts)
    at = f"{letter.dead_lettered_at:%Y-%m-%d %H:%M:%S}"
    return f"{letter.request_id}\t{at}\t{texts} text{'s' * (texts != 1)}\ttaken {letter.deliveries} times"

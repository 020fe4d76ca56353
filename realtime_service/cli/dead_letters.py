"""The command `python -m realtime_service dead-letters`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from realtime_service.process import redis_connections
from shared_model import settings
from shared_model.deferred import DeadLetter, DeadLetters
from shared_model.redis_store.server import RedisServer
from shared_model.settings import DeferredSettings, StateSettings
from shared_model.storage import escaped
from shared_model.trust import keyring


def listed(count: int) -> list[str]:
    """A line for each of the oldest `count`, and one with the number of all. Raises: StoreUnavailable."""

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
    """Accept these requests again, or all dead letters; returns their number.

    Raises: StoreUnavailable; BadInput naming the ids without a dead letter, or SettingError where operators sign and
    this machine has no key: then no request is accepted.
    """

    async def accept() -> int:
        async with _connected() as letters:
            chosen = [it async for it in letters.all()] if request_ids is None else await letters.find(request_ids)
            return await letters.replay(chosen, keyring.load(settings.load(StateSettings)))

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
    return f"{escaped(letter.request_id)}\t{at}\t{texts} text{'s' * (texts != 1)}\ttaken {letter.deliveries} times"

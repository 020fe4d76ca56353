"""Runs the Lua scripts that change the deferred stream atomically, and maps their failures to StoreUnavailable."""

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import redis
import redis.asyncio

from shared_model import tracing
from shared_model.errors import StoreUnavailable
from shared_model.redis_store import keys
from shared_model.settings import DeferredSettings

GROUP = "tandem"
Reply = TypeVar("Reply")

_LUA = Path(__file__).parent / "lua"
_COMMON = (_LUA / "common.lua").read_text()


class Unanswered(StrEnum):
    """How work ends without an answer."""

    EXPIRED = "expired"
    DEAD_LETTER = "dead_letter"


#: Called with the number of requests that ended unanswered. The process that notices reports each request once.
UnansweredCallback = Callable[[Unanswered, int], None]


def ignore_unanswered(how: Unanswered, count: int) -> None:
    """The callback of a process that does not count unanswered requests."""


async def answered(call: Awaitable[Reply]) -> Reply:
    """The reply to a plain command. Raises: StoreUnavailable if Redis does not answer."""
    try:
        return await call
    except (redis.RedisError, OSError) as error:
        raise StoreUnavailable(f"Redis did not answer: {error}") from error


class Scripts:
    """Runs the scripts on one Redis. Every call raises StoreUnavailable if Redis does not answer, or refuses."""

    def __init__(
        self, client: "redis.asyncio.Redis", settings: DeferredSettings, on_unanswered: UnansweredCallback
    ) -> None:
        self._redis = client
        self._settings = settings
        self._on_unanswered = on_unanswered
        self._scripts = {
            path.stem: client.register_script(_COMMON + path.read_text())
            for path in _LUA.glob("*.lua")
            if path.stem != "common"
        }

    async def run(self, name: str, more_keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run the script `name`. Returns its reply. All begin with the same key and arguments: see `common.lua`."""
        with tracing.redis_call("EVALSHA", name):
            return await self._reply(self._scripts[name](**self._call(more_keys, arguments)))

    async def run_replicated(self, name: str, more_keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """As `run`, but waits until as many replicas as the settings ask for hold all earlier writes.

        Raises: StoreUnavailable if they are late, although the master holds the write: the caller must retry.
        """
        if not self._settings.redis_replicas:
            return await self.run(name, more_keys, arguments)
        with tracing.redis_call("EVALSHA", name):
            return await self._reply(self._run_and_wait(self._scripts[name], **self._call(more_keys, arguments)))

    def _call(self, more_keys: Sequence[str], arguments: Sequence[Any]) -> dict[str, list[Any]]:
        kept = self._settings.deferred_keep_seconds
        return {"keys": [keys.deferred_stream(), *more_keys], "args": [GROUP, kept, *arguments]}

    async def _run_and_wait(self, script: Any, keys: Sequence[str], args: Sequence[Any]) -> Any:
        try:
            reply, reached = await self._pipe(script, keys, args)
        except redis.exceptions.NoScriptError:
            await self._redis.script_load(script.script)
            reply, reached = await self._pipe(script, keys, args)
        if reached < self._settings.redis_replicas:
            raise StoreUnavailable(f"{reached} replicas have it, {self._settings.redis_replicas} must")
        return reply

    async def _pipe(self, script: Any, keys: Sequence[str], args: Sequence[Any]) -> Any:
        # WAIT covers every earlier write of the server, so the reply to a duplicate is replicated as well.
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.evalsha(script.sha, len(keys), *keys, *args)
            pipe.execute_command("WAIT", self._settings.redis_replicas, self._settings.redis_replicas_ms)
            return await pipe.execute()

    async def _reply(self, call: Any) -> Any:
        """A script's reply. Reports its expired items. Raises: StoreUnavailable."""
        try:
            expired, answer = await call
        except redis.ResponseError as error:
            # A script's error has its code within the text up to version 6.2; from 7 on the library takes it off.
            said = f"{error.status_code} {error}" if error.status_code else str(error)
            if "READONLY" in said:
                # The former master is a replica now. A new connection asks the Sentinels for the current master, or
                # reaches the server that has the address now. The library sees to it for Sentinels and from 7 on only.
                await self._redis.connection_pool.disconnect(inuse_connections=False)
            raise StoreUnavailable(f"Redis refused: {said}") from error
        except (redis.RedisError, OSError) as error:
            raise StoreUnavailable(f"Redis did not answer: {error}") from error
        if expired:
            self._on_unanswered(Unanswered.EXPIRED, expired)
        return answer

    def report_dead_letters(self, count: int) -> None:
        if count:
            self._on_unanswered(Unanswered.DEAD_LETTER, count)

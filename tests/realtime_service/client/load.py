"""Callers of both clients that never stop, and what became of their calls."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from realtime_service.client import AsyncClient, CallError, Client
from tests.load.workers import Workers

CALLERS = 3
#: Seconds between two calls of one caller.
_PAUSE = 0.01


@dataclass
class Callers(Workers):
    """`CALLERS` threads on one client and as many tasks on another, for as long as the context lasts.

    `answered`: when each call that was answered began, and its seconds; `failed`: how the others ended.
    """

    addresses: list[str]
    timeout_ms: int
    answered: list[tuple[float, float]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def __enter__(self) -> "Callers":
        self._client = Client(self.addresses)
        return super().__enter__()

    def _works(self) -> list[Callable[[], object]]:
        return [self._call] * CALLERS + [lambda: asyncio.run(self._call_together())]

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._client.close()

    def longest_since(self, moment: float) -> float:
        """Seconds of the longest call that began after a moment of the monotonic clock."""
        return max(took for began, took in self.answered if began > moment)

    def _call(self) -> None:
        while not self._over.wait(_PAUSE):
            began = time.monotonic()
            try:
                self._client.score("where is my card", timeout_ms=self.timeout_ms)
            except CallError as error:
                self._failed(error)
            else:
                self._answered(began)

    async def _call_together(self) -> None:
        async with AsyncClient(self.addresses) as client:
            await asyncio.gather(*(self._call_in_turn(client) for _ in range(CALLERS)))

    async def _call_in_turn(self, client: AsyncClient) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            try:
                await client.score("where is my card", timeout_ms=self.timeout_ms)
            except CallError as error:
                self._failed(error)
            else:
                self._answered(began)
            await asyncio.sleep(_PAUSE)

    def _answered(self, began: float) -> None:
        # In one step: several threads append.
        self.answered.append((began, time.monotonic() - began))

    def _failed(self, error: CallError) -> None:
        self.failed.append(f"{type(error).__name__}: {error}")

"""Background tasks: coroutines that run until the process stops. One that ends earlier has failed."""

import asyncio
from collections.abc import Coroutine
from typing import Any

_ASK_AGAIN_SECONDS = 0.1


class BackgroundTasks:
    """The background tasks of one process. `failed` ends with the error of the first that ends by itself."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.append(task)
        return task

    async def failed(self) -> None:
        """Wait until a task ends. Raises: its error."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self, task: asyncio.Task[None]) -> None:
        """Cancel one task and wait for its end.

        Cancels repeatedly: `asyncio.wait_for` of Python 3.11, with which the Redis client awaits its writes, swallows a
        cancellation that comes at the moment when the write completes.
        """
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_ASK_AGAIN_SECONDS)

"""Cancels the work for a caller that leaves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.types import Receive


class CallerLeft(Exception):
    """The caller has closed its connection: no answer can reach it."""


@contextlib.asynccontextmanager
async def cancelling(receive: Receive) -> AsyncIterator[None]:
    """The body of the request has been read. Raises: CallerLeft instead of the cancellation."""
    task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]  # this runs in one
    watch = asyncio.ensure_future(_left(receive))
    watch.add_done_callback(lambda _: None if watch.cancelled() else task.cancel())
    try:
        yield
    except asyncio.CancelledError:
        if not watch.done() or watch.cancelled():
            raise
        task.uncancel()
        raise CallerLeft from None
    finally:
        watch.cancel()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

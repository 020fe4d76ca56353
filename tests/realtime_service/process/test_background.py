"""Background tasks stop when cancelled, and their failures are noticed."""

import asyncio

import pytest

from realtime_service.process.background import BackgroundTasks


@pytest.mark.timeout(20)
async def test_a_task_that_swallows_a_cancellation_is_cancelled_again() -> None:
    heard = 0

    async def deaf_at_first() -> None:
        nonlocal heard
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                # Like the Redis client, when the cancellation comes at the end of a write.
                heard += 1
                if heard == 3:
                    raise

    background_tasks = BackgroundTasks()
    task = background_tasks.start(deaf_at_first())
    await asyncio.sleep(0)
    await background_tasks.stop(task)
    assert task.cancelled()


async def test_a_task_that_fails_is_noticed() -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    background_tasks = BackgroundTasks()
    healthy = background_tasks.start(asyncio.sleep(60))
    failing = background_tasks.start(fails())
    with pytest.raises(ZeroDivisionError):
        await background_tasks.failed()
    await background_tasks.stop(healthy)
    await background_tasks.stop(failing)

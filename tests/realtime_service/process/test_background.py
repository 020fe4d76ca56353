"""Background duties stop when told to, and do not fail in silence."""

import asyncio

import pytest

from realtime_service.process.background import Duties


@pytest.mark.timeout(20)
async def test_a_duty_that_swallows_a_cancellation_is_asked_again() -> None:
    heard = 0

    async def deaf_at_first() -> None:
        nonlocal heard
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                # What the Redis client does when the cancellation meets the end of a write.
                heard += 1
                if heard == 3:
                    raise

    duties = Duties()
    task = duties.start(deaf_at_first())
    await asyncio.sleep(0)
    await duties.stop(task)
    assert task.cancelled()


async def test_a_duty_that_fails_is_noticed() -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    duties = Duties()
    healthy = duties.start(asyncio.sleep(60))
    failing = duties.start(fails())
    with pytest.raises(ZeroDivisionError):
        await duties.failed()
    await duties.stop(healthy)
    await duties.stop(failing)

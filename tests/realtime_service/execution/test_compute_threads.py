"""Streams compute in parallel, each on its own thread; results and errors are delivered on the event loop."""

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest

from realtime_service.execution.compute_threads import YIELDING, ComputeThreads


@pytest.fixture
def streams() -> Iterator[ComputeThreads]:
    two = ComputeThreads(2)
    yield two
    two.close()


async def found(streams: ComputeThreads, *works: object) -> list[object]:
    """The result of each work, in the order of their ends; each is delivered on the loop's own thread."""
    ends: asyncio.Queue[object] = asyncio.Queue()

    def done(end: object) -> None:
        assert threading.current_thread() is threading.main_thread()
        ends.put_nowait(end)

    for work in works:
        streams.submit(work, done)  # type: ignore[arg-type]
    return [await ends.get() for _ in works]


def test_streams_yield_to_the_loop(streams: ComputeThreads) -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert asyncio.run(found(streams, priority)) == [priority() + YIELDING]


def test_two_streams_run_at_once_and_not_on_the_loop(streams: ComputeThreads) -> None:
    meeting = threading.Barrier(2, timeout=10)

    def meet() -> str:
        # Each waits here for the other.
        meeting.wait()
        return threading.current_thread().name

    assert set(asyncio.run(found(streams, meet, meet))) == {"stream-0", "stream-1"}


def test_an_exception_on_a_stream_is_delivered_and_the_stream_goes_on(streams: ComputeThreads) -> None:
    error = RuntimeError("the engine broke")

    def broken() -> None:
        raise error

    assert asyncio.run(found(streams, broken, broken, lambda: 1)).count(error) == 2
    assert asyncio.run(found(streams, lambda: "fine")) == ["fine"]


def test_closing_waits_for_what_runs() -> None:
    one, begun, go_on, ended = ComputeThreads(1), threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(10)
        ended.set()

    async def leave_running() -> None:
        one.submit(work, lambda end: None)
        assert await asyncio.to_thread(begun.wait, 10)
        closing = threading.Thread(target=one.close)
        closing.start()
        closing.join(0.2)
        assert closing.is_alive()
        go_on.set()
        await asyncio.to_thread(closing.join, 10)

    asyncio.run(leave_running())
    assert ended.is_set()

"""The event loop of a process that serves."""

import sys

from realtime_service.transport import event_loop


def test_a_stream_waits_for_the_interpreter_lock_for_a_part_of_a_call() -> None:
    found = list[float]()

    async def look() -> None:
        found.append(sys.getswitchinterval())

    before = sys.getswitchinterval()
    try:
        event_loop.run(look())
    finally:
        sys.setswitchinterval(before)
    assert found[0] <= 0.0005

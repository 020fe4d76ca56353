"""The page *Tandem* reads records by processes that end, a few at once; its routes are tested on an API server."""

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from dags.pages import runtime
from tests.realtime_service.conftest import eventually

pytestmark = pytest.mark.heavy

HANGS = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture(autouse=True)
def own_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A semaphore belongs to one event loop, and each test has another."""
    monkeypatch.setattr(runtime, "_free", asyncio.Semaphore(runtime.AT_ONCE))


def children() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "time.sleep(600)" in child.cmdline():
                found.append(child)
    return found


async def test_a_store_that_does_not_answer_is_given_up_in_time_and_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "SECONDS", 0.5)
    started = time.monotonic()
    # More than run at once: those that wait have no longer than the others.
    ended = await asyncio.gather(*(runtime._read(HANGS) for _ in range(5)), return_exceptions=True)
    assert [type(it) for it in ended] == [TimeoutError] * 5
    assert time.monotonic() - started < 20
    eventually(lambda: not children(), 10)


#: Notes its start in a folder, and ends once it may.
WAITS = ["sh", "-c", 'echo > "$1/$$"; while [ ! -e "$1/end" ]; do sleep 0.01; done; rm "$1/$$"', "-"]


async def test_a_few_processes_run_at_once_and_others_wait(tmp_path: Path) -> None:
    def begun() -> int:
        return sum(name.isdigit() for name in os.listdir(tmp_path))

    running = [asyncio.create_task(runtime._read([*WAITS, str(tmp_path)])) for _ in range(6)]
    counts = list[int]()
    while not all(task.done() for task in running):
        counts.append(begun())
        # As many as may run have been running for a while.
        if counts.count(runtime.AT_ONCE) == 10:
            os.close(os.open(tmp_path / "end", os.O_CREAT))
        await asyncio.sleep(0.02)
    assert max(counts) == runtime.AT_ONCE


async def test_what_a_step_complains_of_is_the_reason() -> None:
    script = "import sys; print('warning: x\\nbatch_job report: it is not there', file=sys.stderr); sys.exit(2)"
    with pytest.raises(runtime.Unreadable, match=r"^batch_job report: it is not there$"):
        await runtime._read([sys.executable, "-c", script])

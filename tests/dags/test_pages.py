"""The page *Tandem* reads records by processes that end, a few at once; its routes are tested on an API server."""

import asyncio
import contextlib
import sys
import time

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


async def test_a_few_processes_run_at_once_and_others_wait() -> None:
    running = [asyncio.create_task(runtime._read(["sleep", "0.3"])) for _ in range(6)]
    most = 0
    while not all(task.done() for task in running):
        most = max(most, sum("sleep" in child.name() for child in psutil.Process().children()))
        await asyncio.sleep(0.02)
    assert most == runtime.AT_ONCE


async def test_what_a_step_complains_of_is_the_reason() -> None:
    script = "import sys; print('warning: x\\nbatch_job report: it is not there', file=sys.stderr); sys.exit(2)"
    with pytest.raises(runtime.Unreadable, match=r"^batch_job report: it is not there$"):
        await runtime._read([sys.executable, "-c", script])

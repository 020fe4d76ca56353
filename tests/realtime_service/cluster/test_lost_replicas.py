"""Replicas in their own processes are killed or stopped while a router forwards to them, without heartbeats."""

import asyncio
import contextlib
import signal
import statistics
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import pytest

from realtime_service.cluster.outlier_detection import FIRST_SECONDS
from realtime_service.errors import DeadlineExpired, ReplicaUnavailable
from realtime_service.rpc.keepalive import REPLICA_PING_MS
from tests.realtime_service.cluster.directory import LANE, RELEASE, Router, routing, until
from tests.realtime_service.cluster.stub import Stub, listening

pytestmark = pytest.mark.heavy

CALLERS = 8
#: Seconds that no call takes.
PATIENT = 20.0


@contextlib.asynccontextmanager
async def replica() -> AsyncIterator[tuple[Process, str]]:
    program = (sys.executable, "-m", "tests.realtime_service.cluster.stub")
    process = await asyncio.create_subprocess_exec(*program, stdout=PIPE)
    assert process.stdout
    try:
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def two_replicas() -> AsyncIterator[tuple[Router, Process]]:
    """A router and the process of its replica "0"."""
    async with (
        replica() as (process, address),
        replica() as (_, other),
        routing({"0": address, "1": other}) as router,
    ):
        await asyncio.gather(router.ask(to="0"), router.ask(to="1"))
        yield router, process


class Callers:
    """Callers of both replicas in turn until the block ends. `seconds`: the deadlines of calls, by the replica
    that is asked first; `late`: those past the deadline of each call that ended with it; `failed`: ends of other failed
    calls; `took`: seconds of the longest answered call."""

    def __init__(self, router: Router, to_first: float = PATIENT) -> None:
        self._router = router
        self.seconds = {"0": to_first, "1": PATIENT}
        self.answered, self.took = 0, 0.0
        self.late: list[float] = []
        self.failed: list[Exception] = []

    async def __aenter__(self) -> "Callers":
        self._tasks = [asyncio.create_task(self._call_in_turn(number)) for number in range(CALLERS)]
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def more(self, calls: int) -> None:
        """Wait for so many more answers."""
        enough = self.answered + calls
        await until(lambda: self.answered >= enough, seconds=60)

    async def _call_in_turn(self, number: int) -> None:
        while True:
            number += 1
            options = self._router.directory.snapshot.options[RELEASE, LANE]
            to = options[number % len(options)].replica
            began, seconds = time.monotonic(), self.seconds[to]
            try:
                await self._router.ask(seconds=seconds, to=to)
            except DeadlineExpired:
                self.late.append(time.monotonic() - began - seconds)
            except ReplicaUnavailable as error:
                self.failed.append(error)
            else:
                self.answered += 1
                self.took = max(self.took, time.monotonic() - began)
            await asyncio.sleep(0.01)


def sent_in_vain(router: Router) -> float:
    return sum(
        router.counted("tandem_forwarded_total", path=LANE, outcome=outcome)
        for outcome in ("expired", "lost", "not sent")
    )


async def test_a_replica_that_is_killed_fails_no_call_and_is_ejected() -> None:
    async with two_replicas() as (router, process), Callers(router) as callers:
        await callers.more(300)
        process.kill()
        await callers.more(300)
        assert router.directory.ejected == {"0"}
        # The replica stays ejected after the ejection time, because it is unreachable.
        in_vain = sent_in_vain(router)
        await asyncio.sleep(2 * FIRST_SECONDS)
        await callers.more(300)
        assert sent_in_vain(router) == in_vain
    assert (callers.failed, callers.late) == ([], [])


async def test_no_call_to_a_replica_that_hangs_ends_long_after_its_deadline() -> None:
    # The other replica answers late only where the machine is busy, which says nothing here.
    async with two_replicas() as (router, process), Callers(router, to_first=0.25) as callers:
        await callers.more(300)
        process.send_signal(signal.SIGSTOP)
        await until(lambda: "0" in router.directory.ejected)
        # Expired deadlines eject the replica sooner than missing pings.
        assert router.counted("tandem_ejections_total", reason="failed") == 1
        await asyncio.sleep(2.0)
        in_vain = sent_in_vain(router)
        await callers.more(300)
        assert sent_in_vain(router) == in_vain
        callers.seconds["0"] = PATIENT
        process.send_signal(signal.SIGCONT)
        await until(lambda: not router.directory.ejected)
        await until(lambda: router.directory.option("0").sent.seconds > 0)
        await callers.more(300)
        assert not router.directory.ejected
    assert callers.failed == []
    assert statistics.median(callers.late) < 0.05
    assert max(callers.late) < 0.5


async def test_a_replica_that_hangs_fails_no_call_with_a_loose_deadline() -> None:
    async with two_replicas() as (router, process), Callers(router) as callers:
        await callers.more(300)
        process.send_signal(signal.SIGSTOP)
        await callers.more(300)
        await until(lambda: "0" in router.directory.ejected)
        await callers.more(300)
    assert (callers.failed, callers.late) == ([], [])
    # Its calls went to the other replica once a ping had not been answered, which may have been sent before the stop.
    assert REPLICA_PING_MS / 2000 < callers.took < 4.0


async def test_a_replica_that_hangs_is_noticed_without_calls() -> None:
    async with two_replicas() as (router, process):
        process.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        await until(lambda: "0" in router.directory.ejected)
        assert time.monotonic() - stopped < 4.0
        assert router.counted("tandem_ejections_total", reason="unreachable") == 1
        assert router.counted("tandem_ejected") == 1
        await router.ask(seconds=2.0)


async def test_listeners_accept_frequent_pings() -> None:
    """Replicas accept each other's frequent pings; a listener with default settings closes the connection after three
    seconds and a half."""
    async with (
        listening(Stub()) as one,
        listening(Stub()) as other,
        routing({"0": one.address, "1": other.address}) as router,
    ):
        await asyncio.gather(router.ask(to="0"), router.ask(to="1"))
        await asyncio.sleep(4.5)
        assert router.counted("tandem_ejections_total", reason="unreachable") == 0

"""WatchResults reports the end of each submitted request once, also after an outage of Redis and to many callers."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis.asyncio

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from protos.scoring.v1.storage_pb2 import DeferredWork
from realtime_service.client import CallError, Client
from realtime_service.client.calls import Watched
from realtime_service.errors import NotFound
from realtime_service.serving.result_watcher import PERIOD_SECONDS, Watcher
from shared_model.deferred import DeferredQueue, Item, State
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings
from tests.realtime_service.conftest import eventually
from tests.realtime_service.rollout.stage import Stage, staged

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A replica without a backfill worker: the test ends the requests."""
    with staged(tmp_path_factory.mktemp("stage"), TANDEM_HARVEST="false") as made:
        yield made


@pytest.fixture
def stub(stage: Stage) -> Iterator[ScoringServiceStub]:
    with grpc.insecure_channel(stage.replica.address) as channel:
        yield ScoringServiceStub(channel)


def submit(stub: ScoringServiceStub, *request_ids: str) -> None:
    for request_id in request_ids:
        work = scoring_pb2.ScoreRequest(request_id=request_id, texts=["card"])
        stub.Submit(scoring_pb2.SubmitRequest(request=work), timeout=10)


def watch(stub: ScoringServiceStub, *request_ids: str, timeout: float = 30) -> Any:
    return stub.WatchResults(scoring_pb2.WatchResultsRequest(request_ids=request_ids), timeout=timeout)


def finish(stage: Stage, request_id: str, failure: str = "") -> None:
    """End one request, as a backfill worker would."""

    async def finish_it() -> None:
        async with redis.asyncio.Redis.from_url(stage.redis.url) as client:
            deferred_queue = DeferredQueue(client)
            claimed = await deferred_queue.claim("test", 100, 0.0, again=100)
            [item] = [it for it in claimed if it.request_id == request_id]
            await deferred_queue.nack("test", [it for it in claimed if it is not item])
            if failure:
                await deferred_queue.fail(item, failure, "test")
            else:
                await deferred_queue.store_results([(item, scoring_pb2.ScoreResponse(request_id=request_id))], "test")
                await deferred_queue.acknowledge([item])

    asyncio.run(finish_it())


def refusal(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), error.value.details()


def test_each_end_is_reported_once_and_the_last_ends_the_watch(stage: Stage, stub: ScoringServiceStub) -> None:
    submit(stub, "a", "b", "c")
    finish(stage, "b")
    ends = watch(stub, "a", "b", "c", "b")
    told = [next(ends)]
    finish(stage, "c", failure="no such release")
    told.append(next(ends))
    finish(stage, "a")
    told.extend(ends)
    assert [(it.request_id, it.state, it.failure) for it in told] == [
        ("b", scoring_pb2.PUBLISHED, ""),
        ("c", scoring_pb2.FAILED, "no such release"),
        ("a", scoring_pb2.PUBLISHED, ""),
    ]
    assert told[0].response.request_id == "b"
    # A second watch finds all ended.
    assert {it.request_id for it in watch(stub, "a", "b", "c")} == {"a", "b", "c"}


def test_a_watch_on_which_nothing_ends_is_ended_and_a_client_asks_again(
    stage: Stage, stub: ScoringServiceStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(stub, "soon", "late")
    finish(stage, "soon", failure="no such release")
    hasty = stage.another_replica("hasty", TANDEM_HARVEST="false", TANDEM_STREAM_IDLE_SECONDS="0.6")
    with grpc.insecure_channel(hasty.address) as channel, Client(hasty.address) as client:
        ends = watch(ScoringServiceStub(channel), "soon", "late")
        assert next(ends).request_id == "soon"
        code, details = refusal(lambda: next(ends))
        assert (code, details[:24]) == (grpc.StatusCode.UNAVAILABLE, "nothing happened on this")
        # The shipped client asks again, as on a broken connection, and meets the end that it waits for.
        goes_on = Watched.goes_on

        def after_its_end(watched: Watched, idle: CallError) -> bool:
            finish(stage, "late", failure="no such release")
            return goes_on(watched, idle)

        monkeypatch.setattr(Watched, "goes_on", after_its_end)
        assert [it.request_id for it in client.watch(["soon", "late"])] == ["soon", "late"]
    assert hasty.stop() == 0


def test_an_id_that_was_not_submitted_ends_the_call_and_is_named(stage: Stage, stub: ScoringServiceStub) -> None:
    submit(stub, "known")
    code, details = refusal(lambda: list(watch(stub, "known", "never")))
    assert (code, "'never' was not submitted" in details) == (grpc.StatusCode.NOT_FOUND, True)


def test_the_calls_deadline_ends_it(stage: Stage, stub: ScoringServiceStub) -> None:
    submit(stub, "slow")
    assert refusal(lambda: list(watch(stub, "slow", timeout=0.3)))[0] is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([], "request_ids: holds 0 ids"),
        (["x"] * 1001, "request_ids: holds 1001"),
        (["x", ""], "request_ids[1]: is empty"),
    ],
)
def test_invalid_watches_are_refused_with_the_reason(stub: ScoringServiceStub, ids: list[str], says: str) -> None:
    code, details = refusal(lambda: list(watch(stub, *ids)))
    assert (code, details[: len(says)]) == (grpc.StatusCode.INVALID_ARGUMENT, says)


def test_the_error_of_a_very_long_id_is_short(stub: ScoringServiceStub) -> None:
    code, details = refusal(lambda: list(watch(stub, "é" * 1_000_000)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert len(details) < 1000


def test_a_replica_that_closes_ends_its_watches_and_another_goes_on(stage: Stage, stub: ScoringServiceStub) -> None:
    submit(stub, "over", "passed on")
    finish(stage, "over")
    leaving = stage.another_replica("leaving", TANDEM_HARVEST="false")
    with grpc.insecure_channel(leaving.address) as channel:
        ends = watch(ScoringServiceStub(channel), "over", "passed on")
        assert next(ends).request_id == "over"
        started = time.monotonic()
        leaving.process.send_signal(signal.SIGTERM)
        code, details = refusal(lambda: next(ends))
        assert (code, details[:23]) == (grpc.StatusCode.UNAVAILABLE, "this replica is closing")
        assert leaving.process.wait(timeout=30) == 0
        # Much sooner than the drain time of ten seconds.
        assert time.monotonic() - started < 8
    ends = watch(stub, "passed on")
    finish(stage, "passed on")
    assert [it.request_id for it in ends] == ["passed on"]


def test_a_stream_that_stays_open_does_not_hold_up_the_end(stage: Stage) -> None:
    leaving, over = stage.another_replica("leaving with a stream", TANDEM_HARVEST="false"), threading.Event()

    def requests() -> Iterator[scoring_pb2.ScoreRequest]:
        yield scoring_pb2.ScoreRequest(request_id="1", texts=["card"])
        over.wait(30)

    with grpc.insecure_channel(leaving.address) as channel:
        answers = ScoringServiceStub(channel).ScoreStream(requests(), timeout=30)
        assert next(answers).request_id == "1"
        started = time.monotonic()
        leaving.process.send_signal(signal.SIGTERM)
        code, details = refusal(lambda: next(answers))
        over.set()
        assert (code, details[:23]) == (grpc.StatusCode.UNAVAILABLE, "this replica is closing")
        assert leaving.process.wait(timeout=30) == 0
        assert time.monotonic() - started < 8


def test_a_watch_goes_on_when_redis_comes_back(stage: Stage, stub: ScoringServiceStub) -> None:
    submit(stub, "first", "second")
    ends = watch(stub, "first", "second")
    finish(stage, "first")
    assert next(ends).request_id == "first"
    assert stage.redis.pid
    os.kill(stage.redis.pid, signal.SIGKILL)
    eventually(lambda: not stub.Describe(scoring_pb2.DescribeRequest(), timeout=10).redis_available)
    # Long enough for several polls without Redis.
    gone_until = time.monotonic() + 5 * PERIOD_SECONDS
    while time.monotonic() < gone_until:
        assert refusal(lambda: list(watch(stub, "second")))[0] is grpc.StatusCode.UNAVAILABLE
    with RedisServer(StateSettings(state=Path(stage.folder))):
        finish(stage, "second")
        assert [it.request_id for it in ends] == ["second"]


class Counting(DeferredQueue):
    """A queue that counts polls: one item in `looked` for each."""

    def __init__(self, client: "redis.asyncio.Redis") -> None:
        super().__init__(client)
        self.looks: list[int] = []
        self.looked = asyncio.Semaphore(0)

    async def states(self, request_ids: Sequence[str]) -> list[State | None]:
        self.looks.append(len(request_ids))
        found = await super().states(request_ids)
        self.looked.release()
        return found


@pytest.fixture
def deferred_queue(own_redis: "redis.asyncio.Redis") -> Counting:
    return Counting(own_redis)


async def accept(deferred_queue: DeferredQueue, *request_ids: str) -> None:
    for request_id in request_ids:
        await deferred_queue.submit(request_id, DeferredWork())


async def ends_of(watcher: Watcher, *request_ids: str) -> list[tuple[str, Item]]:
    return [end async for end in watcher.watch(request_ids)]


async def test_many_watches_share_one_poll(deferred_queue: Counting) -> None:
    await accept(deferred_queue, *map(str, range(600)))
    watcher = Watcher(deferred_queue)
    watches = [asyncio.create_task(ends_of(watcher, *map(str, range(600)))) for _ in range(10)]
    for _ in range(20):  # the first poll of each watch, in chunks
        await deferred_queue.looked.acquire()
    deferred_queue.looks.clear()
    await watcher.run_once()
    assert deferred_queue.looks == [500, 100]
    for watch in watches:
        watch.cancel()
    await asyncio.wait(watches)
    deferred_queue.looks.clear()
    await watcher.run_once()
    # The requests of a cancelled watch are not polled any more.
    assert sum(deferred_queue.looks) == 0


async def test_a_result_that_is_lost_during_its_watch_is_not_found(
    deferred_queue: Counting, own_redis: "redis.asyncio.Redis"
) -> None:
    await accept(deferred_queue, "lost")
    watcher = Watcher(deferred_queue)
    watch = asyncio.create_task(ends_of(watcher, "lost"))
    await deferred_queue.looked.acquire()
    await own_redis.flushall()
    while not watch.done():
        await watcher.run_once()
        await asyncio.sleep(0.001)
    with pytest.raises(NotFound, match="'lost'"):
        await watch

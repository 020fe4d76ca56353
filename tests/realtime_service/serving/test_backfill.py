"""The backfill worker with requests that it loses, cannot answer, must return, or cannot store."""

import asyncio
from typing import Any

import pytest
import redis.asyncio

from protos.scoring.v1.scoring_pb2 import ScoreRequest
from protos.scoring.v1.storage_pb2 import DeferredWork
from realtime_service.errors import Overloaded
from realtime_service.process.background import BackgroundTasks
from realtime_service.serving.answer import Answer
from realtime_service.serving.backfill import BackfillWorker
from realtime_service.serving.request import ScoringRequest
from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import SystemClock
from shared_model.deferred import Claimed, DeferredQueue, State
from shared_model.errors import BadInput, StoreUnavailable
from shared_model.types import ServingPath
from tests.realtime_service.conftest import eventually


class Scripted:
    """A fake dispatcher: each text names its outcome."""

    served_models = frozenset({"main"})

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.cancelled: list[str] = []

    async def score_deferred(self, request: ScoringRequest) -> Answer:
        [text] = request.texts
        self.begun.append(text)
        if text == "refuse":
            raise Overloaded("the device is busy", 0.1)
        if text == "impossible":
            raise BadInput("texts[0]", "cannot be read")
        if text == "endless":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(text)
                raise
        return Answer((), ServingPath.DEFERRED, "r-1", "int8", 1, 0.0, 0.0, "because")


@pytest.fixture
def deferred_queue(own_redis: "redis.asyncio.Redis") -> DeferredQueue:
    return DeferredQueue(own_redis)


@pytest.fixture
def script() -> Scripted:
    return Scripted()


def backfill_worker(deferred_queue: DeferredQueue, script: Any) -> BackfillWorker:
    nobody: Any = None
    return BackfillWorker(deferred_queue, script, nobody, Metrics([]), SystemClock(), "lane")


async def accept(deferred_queue: DeferredQueue, *texts: str) -> None:
    for text in texts:
        await deferred_queue.submit(text, DeferredWork(request=ScoreRequest(texts=[text], request_id=text)))


async def state_of(deferred_queue: DeferredQueue, request_id: str) -> State | None:
    [state] = await deferred_queue.states([request_id])
    return state


async def test_each_of_a_chunk_ends_in_its_own_way(deferred_queue: DeferredQueue, script: Scripted) -> None:
    await accept(deferred_queue, "fine", "refuse", "impossible")
    assert await backfill_worker(deferred_queue, script).run_once() == 2
    assert await deferred_queue.states(["fine", "refuse", "impossible"]) == [
        State.PUBLISHED,
        State.ACCEPTED,
        State.FAILED,
    ]


async def test_a_refusal_does_not_count_as_a_crash(deferred_queue: DeferredQueue, script: Scripted) -> None:
    await accept(deferred_queue, "refuse")
    for _ in range(5):
        assert await backfill_worker(deferred_queue, script).run_once() == 0
    assert script.begun == ["refuse"] * 5
    assert await state_of(deferred_queue, "refuse") is State.ACCEPTED


async def test_a_replica_that_stops_leaves_its_work_to_the_others_at_once(
    deferred_queue: DeferredQueue, script: Scripted
) -> None:
    await accept(deferred_queue, "endless")
    for times in range(1, 5):
        stopping = asyncio.create_task(backfill_worker(deferred_queue, script).run_once())
        await asyncio.to_thread(eventually, lambda times=times: len(script.begun) == times)  # type: ignore[misc]
        stopping.cancel()
        await asyncio.wait([stopping])
        assert await state_of(deferred_queue, "endless") is State.ACCEPTED
    assert script.cancelled == ["endless"] * 4


class Late(DeferredQueue):
    """A queue whose replies come once they are `let`."""

    def __init__(self, client: "redis.asyncio.Redis") -> None:
        super().__init__(client)
        self.claimed, self.let = asyncio.Event(), asyncio.Event()

    async def claim(self, *arguments: Any, **options: Any) -> list[Claimed]:
        found = await super().claim(*arguments, **options)
        self.claimed.set()
        await self.let.wait()
        return found

    async def nack(self, *arguments: Any) -> int:
        await self.let.wait()
        return await super().nack(*arguments)


async def test_so_does_one_that_stops_before_it_hears_what_it_has_claimed(
    own_redis: "redis.asyncio.Redis", script: Scripted
) -> None:
    late = Late(own_redis)
    await accept(late, "fine")
    background_tasks = BackgroundTasks()
    task = background_tasks.start(backfill_worker(late, script).run_once())
    await late.claimed.wait()
    assert await state_of(late, "fine") is State.CLAIMED
    # For longer than it takes until a stop cancels again.
    asyncio.get_running_loop().call_later(0.25, late.let.set)
    await background_tasks.stop(task)
    assert (task.cancelled(), script.begun) == (True, [])
    assert await state_of(late, "fine") is State.ACCEPTED


async def test_a_lost_request_is_abandoned_and_the_rest_is_answered(
    deferred_queue: DeferredQueue, script: Scripted, own_redis: "redis.asyncio.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared_model.deferred.lease.RENEW_SECONDS", 0.05)
    await accept(deferred_queue, "endless", "fine")
    working = asyncio.create_task(backfill_worker(deferred_queue, script).run_once())
    await asyncio.to_thread(eventually, lambda: len(script.begun) == 2)
    [taken] = await DeferredQueue(own_redis).claim("other", 1, lease_seconds=0.0)
    assert taken.request_id == "endless"
    async with asyncio.timeout(10):
        assert await working == 1
    assert script.cancelled == ["endless"]
    assert await deferred_queue.states(["endless", "fine"]) == [State.CLAIMED, State.PUBLISHED]


class Away(DeferredQueue):
    """A queue that fails to store answers a few times."""

    refusals = 3

    async def store_results(self, *arguments: Any) -> list[bool]:
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailable("Redis did not answer")
        return await super().store_results(*arguments)


async def test_an_answer_waits_for_the_store_and_is_not_computed_again(
    own_redis: "redis.asyncio.Redis", script: Scripted
) -> None:
    away = Away(own_redis)
    await accept(away, "fine")
    assert await backfill_worker(away, script).run_once() == 1
    assert (script.begun, away.refusals) == (["fine"], 0)
    assert await state_of(away, "fine") is State.PUBLISHED

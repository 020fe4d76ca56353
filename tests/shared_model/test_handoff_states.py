"""Whatever consumers do, and whenever they crash: every accepted request gets exactly one answer, and keeps it."""

import asyncio
from typing import Any

import pytest
import redis
import redis.asyncio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from protos.scoring.v1.scoring_pb2 import ScoreRequest, ScoreResponse
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model.errors import QueueFull
from shared_model.handoff import Claimed, Handoff, State

BOUND = 4
LONG, RAN_OUT = 60.0, 0.0


class DeferredLife(RuleBasedStateMachine):
    """Submits, claims, lost leases, crashes, answers and failures in any order, against a model that is a dictionary.

    A crash is a claim that nothing follows; an expired lease is a claim of what another consumer holds.
    """

    held: Bundle[Claimed] = Bundle("held")

    def __init__(self, url: str) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.client = redis.asyncio.Redis.from_url(url)
        self.handoff = Handoff(self.client, bound=BOUND)
        self.run(self.client.flushall())
        self.run(self.handoff.claim("first", 1, LONG))
        self.outcome: dict[str, Any] = {}  # request id → its answer or failure; None while unfinished
        self.answers = 0

    def run(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)

    def unfinished(self) -> list[str]:
        return [request_id for request_id, outcome in self.outcome.items() if outcome is None]

    @rule(request_id=st.sampled_from("abcdefgh"))
    def submit(self, request_id: str) -> None:
        work = DeferredWork(request=ScoreRequest(texts=[request_id]))
        if request_id not in self.outcome and len(self.unfinished()) == BOUND:
            with pytest.raises(QueueFull):
                self.run(self.handoff.submit(request_id, work))
            return
        _, duplicate = self.run(self.handoff.submit(request_id, work))
        assert duplicate == (request_id in self.outcome)
        self.outcome.setdefault(request_id, None)

    @rule(target=held, consumer=st.sampled_from("xyz"), count=st.integers(1, 4), lease=st.sampled_from([LONG, RAN_OUT]))
    def claim(self, consumer: str, count: int, lease: float) -> Any:
        claimed = self.run(self.handoff.claim(consumer, count, lease))
        assert len({item.request_id for item in claimed}) == len(claimed)
        assert {item.request_id for item in claimed} <= set(self.unfinished())
        assert all(list(item.work.request.texts) == [item.request_id] for item in claimed)
        return multiple(*claimed)

    @rule(item=held)
    def publish_and_hold_on(self, item: Claimed) -> None:
        """The acknowledgement got lost: the same answer comes again later."""
        self._publish(item)

    @rule(item=consumes(held))
    def publish(self, item: Claimed) -> None:
        self._publish(item)

    def _publish(self, item: Claimed) -> None:
        self.answers += 1
        answer = ScoreResponse(request_id=item.request_id, queue_us=self.answers)
        self._finished(item, answer, self.run(self.handoff.publish(item, answer, "idle")))

    @rule(item=consumes(held))
    def fail(self, item: Claimed) -> None:
        self.answers += 1
        failure = f"failure {self.answers}"
        self._finished(item, failure, self.run(self.handoff.fail(item, failure, "nightly")))

    def _finished(self, item: Claimed, outcome: Any, kept: bool) -> None:
        assert kept == (self.outcome[item.request_id] is None)
        if kept:
            self.outcome[item.request_id] = outcome

    @rule(item=consumes(held))
    def crash(self, item: Claimed) -> None:
        """The consumer is gone, and what it held with it."""

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        assert self.run(self.handoff.waiting()) == len(self.unfinished())
        for request_id, outcome in self.outcome.items():
            item = self.run(self.handoff.get(request_id))
            assert (item.response or item.failure or None) == outcome
            assert (item.state in (State.PUBLISHED, State.FAILED)) == (outcome is not None)

    def teardown(self) -> None:
        while items := self.run(self.handoff.claim("last", 10, RAN_OUT)):
            for item in items:
                self._publish(item)
        assert self.unfinished() == []
        self.run(self.client.aclose())
        self.loop.close()


@pytest.mark.timeout(120)
def test_every_accepted_request_gets_exactly_one_answer(redis_url: str) -> None:
    run_state_machine_as_test(
        lambda: DeferredLife(redis_url),  # type: ignore[arg-type]  # a factory does as well
        settings=settings(
            max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )

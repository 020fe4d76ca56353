"""Whatever consumers do, and whenever they crash: every accepted request ends exactly once, and keeps its end."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
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
from shared_model.deferred import Claimed, DeadLetters, DeferredQueue, State, Unanswered
from shared_model.deferred.store import LAST_DELIVERY
from shared_model.errors import QueueFull
from shared_model.redis_store import keys
from shared_model.settings import DeferredSettings
from tests.properties import examples

BOUND = 4
LONG, RAN_OUT = 60.0, 0.0
HOUR_MS = 3_600_000


@dataclass
class Life:
    """The model's view of one request. `overdue`: its deadline passed before it had a result."""

    dated: bool
    state: State = State.ACCEPTED
    entry: bytes = b""
    holder: str = ""
    deliveries: int = 0
    overdue: bool = False
    outcome: Any = None

    @property
    def open(self) -> bool:
        """Whether it has neither an end nor a result."""
        return self.state in (State.ACCEPTED, State.CLAIMED) and not self.overdue


class DeferredLife(RuleBasedStateMachine):
    """Submits, claims, lost leases, crashes, renewals, answers, failures, time that passes and replays in any order,
    against a model that is a dictionary.

    A crash is a claim that nothing follows; a lost lease is a claim of what another consumer holds. Time passes for one
    request by moving its date: the clock is Redis' own.
    """

    held: Bundle[tuple[str, Claimed]] = Bundle("held")
    scored: Bundle[Claimed] = Bundle("scored")

    def __init__(self, url: str) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.client = redis.asyncio.Redis.from_url(url)
        self.told: dict[Unanswered, int] = dict.fromkeys(Unanswered, 0)
        promises = DeferredSettings(deferred_bound=BOUND)
        self.deferred_queue = DeferredQueue(self.client, promises, self._tell)
        self.letters = DeadLetters(self.client, promises)
        self.run(self.client.flushall())
        self.lives: dict[str, Life] = {}
        self.answers = 0
        self.expired = self.buried = 0

    def _tell(self, how: Unanswered, count: int) -> None:
        self.told[how] += count

    def run(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)

    def stored(self) -> list[str]:
        """Requests whose entry is still on the stream, as far as anybody has looked."""
        return [request_id for request_id, life in self.lives.items() if not life.state.ended]

    def notice(self, request_id: str) -> Life:
        """Apply the effect of reading one request: it may expire."""
        life = self.lives[request_id]
        if life.overdue and not life.state.ended:
            life.state, life.holder = State.EXPIRED, ""
            self.expired += 1
        return life

    @rule(request_id=st.sampled_from("abcdefgh"), dated=st.booleans())
    def submit(self, request_id: str, dated: bool) -> None:
        work = DeferredWork(request=ScoreRequest(texts=[request_id]))
        call = self.deferred_queue.submit(request_id, work, HOUR_MS if dated else 0)
        if request_id not in self.lives and len(self.stored()) == BOUND:
            with pytest.raises(QueueFull):
                self.run(call)
            return
        state, duplicate = self.run(call)
        assert duplicate == (request_id in self.lives)
        if duplicate:
            assert state is self.notice(request_id).state
        else:
            self.lives[request_id] = Life(dated)

    @rule(
        target=held,
        consumer=st.sampled_from("xyz"),
        count=st.integers(1, 4),
        lease=st.sampled_from([LONG, RAN_OUT]),
        again=st.integers(1, 3),
        counted=st.booleans(),
    )
    def claim(self, consumer: str, count: int, lease: float, again: int, counted: bool) -> Any:
        claimed = self.run(self.deferred_queue.claim(consumer, count, lease, again, counted))
        assert len({item.request_id for item in claimed}) == len(claimed) <= count
        assert all(list(item.work.request.texts) == [item.request_id] for item in claimed)
        before = {item.request_id: self.lives[item.request_id].deliveries for item in claimed}
        assert len([it for it in before.values() if it]) <= again
        for item in claimed:
            life = self.lives[item.request_id]
            assert life.open
            assert life.deliveries + 1 < LAST_DELIVERY
            assert lease == RAN_OUT or not life.holder
            life.state, life.holder, life.entry = State.CLAIMED, consumer, item.entry
            life.deliveries += counted
        self._catch_up()
        return multiple(*((consumer, item) for item in claimed))

    def _catch_up(self) -> None:
        """A claim also ends what needs no more work, as far as it looks: believe it where that was due."""
        for request_id, life in self.lives.items():
            [state] = self.run(self.deferred_queue.states([request_id]))
            if life.state is State.SCORED and state is State.PUBLISHED:
                life.state = state
            elif life.open and life.deliveries + 1 >= LAST_DELIVERY and state is State.FAILED:
                life.state, life.outcome = state, "given up"
                self.buried += 1
            self.notice(request_id)

    @rule(pair=held)
    def renew(self, pair: tuple[str, Claimed]) -> None:
        consumer, item = pair
        life = self.lives[item.request_id]
        still = life.holder == consumer and life.entry == item.entry and not life.state.ended
        assert self.run(self.deferred_queue.renew(consumer, [item])) == ({item.entry} if still else set())

    @rule(pair=consumes(held))
    def nack(self, pair: tuple[str, Claimed]) -> None:
        consumer, item = pair
        life = self.notice(item.request_id)
        self.run(self.deferred_queue.get(item.request_id))
        still = life.holder == consumer and life.entry == item.entry and not life.state.ended
        assert self.run(self.deferred_queue.nack(consumer, [item])) == still
        if still:
            life.deliveries -= item.counted
            life.holder = ""
            if life.state is State.CLAIMED:
                life.state = State.ACCEPTED

    @rule(request_id=st.sampled_from("abcdefgh"))
    def time_passes(self, request_id: str) -> None:
        life = self.lives.get(request_id)
        if life and life.dated and life.open:
            self.run(self.client.hset(keys.deferred_item(request_id), "due", 1))
            life.overdue = True

    @rule(target=scored, pair=held)
    def score_and_hold_on(self, pair: tuple[str, Claimed]) -> Any:
        """The acknowledgement got lost: the same work is answered again later."""
        return self._score(pair[1])

    @rule(target=scored, pair=consumes(held))
    def store_result(self, pair: tuple[str, Claimed]) -> Any:
        return self._score(pair[1])

    def _score(self, item: Claimed) -> Claimed:
        self.answers += 1
        life = self.notice(item.request_id)
        answer = ScoreResponse(request_id=item.request_id, queue_us=self.answers)
        [kept] = self.run(self.deferred_queue.store_results([(item, answer)], "idle"))
        assert kept == life.open
        if kept:
            life.state, life.outcome = State.SCORED, answer
        return item

    @rule(item=consumes(scored))
    def acknowledge(self, item: Claimed) -> None:
        life = self.notice(item.request_id)
        published = self.run(self.deferred_queue.acknowledge([item]))
        assert published == (life.state is State.SCORED)
        if published:
            life.state = State.PUBLISHED

    @rule(pair=consumes(held))
    def fail(self, pair: tuple[str, Claimed]) -> None:
        self.answers += 1
        life = self.notice(pair[1].request_id)
        kept = self.run(self.deferred_queue.fail(pair[1], f"failure {self.answers}", "nightly"))
        assert kept == life.open
        if kept:
            life.state, life.outcome = State.FAILED, f"failure {self.answers}"

    @rule(pair=consumes(held))
    def dead_letter(self, pair: tuple[str, Claimed]) -> None:
        life = self.notice(pair[1].request_id)
        kept = self.run(self.deferred_queue.dead_letter(pair[1], "given up", "nightly", attempts=2))
        assert kept == life.open
        if kept:
            life.state, life.outcome = State.FAILED, "given up"
            self.buried += 1

    @rule(pair=consumes(held))
    def crash(self, pair: tuple[str, Claimed]) -> None:
        """The consumer is gone, and what it held with it."""

    @rule()
    def replay(self) -> None:
        letters = self.run(self._letters())
        assert self.run(self.letters.replay(letters)) == len(letters)
        for letter in letters:
            assert self.lives[letter.request_id].outcome == "given up"
            self.lives[letter.request_id] = Life(dated=False)

    async def _letters(self) -> list[Any]:
        return [letter async for letter in self.letters.all()]

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        assert self.run(self.deferred_queue.waiting()) >= len([it for it in self.lives.values() if it.open])
        for request_id in self.lives:
            life, item = self.notice(request_id), self.run(self.deferred_queue.get(request_id))
            assert item.state is life.state
            if life.state is State.PUBLISHED:
                assert item.response == life.outcome
            assert bool(item.failure) == (life.state is State.FAILED)
        assert self.told == {Unanswered.EXPIRED: self.expired, Unanswered.DEAD_LETTER: self.buried}

    def teardown(self) -> None:
        while pairs := self.run(self.deferred_queue.claim("last", 10, RAN_OUT, 10)) or self.run(self._letters()):
            if isinstance(pairs[0], Claimed):
                for item in pairs:
                    self.lives[item.request_id].state = State.CLAIMED
                    self._score(item)
                    self.acknowledge(item)
            else:
                self._catch_up()
                self.replay()
        self._catch_up()
        assert all(life.state.ended for life in self.lives.values())
        assert self.run(self.deferred_queue.waiting()) == 0
        self.run(self.client.aclose())
        self.loop.close()


@pytest.mark.hypothesis
def test_every_accepted_request_ends_exactly_once(redis_url: str) -> None:
    run_state_machine_as_test(
        lambda: DeferredLife(redis_url),  # type: ignore[arg-type]  # a factory does as well
        settings=settings(max_examples=examples(60), stateful_step_count=30, suppress_health_check=list(HealthCheck)),
    )


@pytest.fixture
def life(redis_url: str) -> Iterator[DeferredLife]:
    """The same model, driven by hand; every request has ended when the test is over."""
    machine = DeferredLife(redis_url)
    yield machine
    machine.teardown()


def claims(life: DeferredLife, consumer: str, lease: float = LONG, **more: Any) -> list[tuple[str, Claimed]]:
    asked = {"count": 4, "again": 1, "counted": True} | more
    pairs = life.claim(consumer=consumer, lease=lease, **asked).values
    life.the_store_agrees_with_the_model()
    return list(pairs)


def test_what_was_delivered_before_and_is_given_back_is_free_at_once(life: DeferredLife) -> None:
    life.submit("a", dated=False)
    [lost] = claims(life, "x")
    life.crash(lost)
    [held] = claims(life, "y", RAN_OUT, counted=False)
    life.nack(held)
    [(consumer, item)] = claims(life, "z", LONG)
    assert (consumer, item.request_id) == ("z", "a")


def test_what_was_given_back_has_no_holder_who_could_renew_it_or_give_it_back_again(life: DeferredLife) -> None:
    life.submit("a", dated=False)
    [first] = claims(life, "x")
    [second] = claims(life, "x", RAN_OUT)
    life.nack(first)
    life.renew(second)
    life.nack(second)
    assert len(claims(life, "y", LONG)) == 1


def test_what_needs_no_more_work_does_not_keep_a_consumer_from_what_is_new(life: DeferredLife) -> None:
    life.submit("a", dated=False)
    [answered] = claims(life, "x")
    life.store_result(answered)
    life.submit("b", dated=False)
    assert [item.request_id for _, item in claims(life, "y", RAN_OUT, again=2)] == ["b"]

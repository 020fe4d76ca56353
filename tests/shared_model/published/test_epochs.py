"""The pointer goes forward by itself and back only by a person; what a person went back from stays back."""

import os
import signal
import subprocess
import sys

import pytest
import redis
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from protos.scoring.v1.storage_pb2 import PublishedScore
from shared_model.errors import JobError
from shared_model.published import epochs
from shared_model.published.epochs import KEEP_SECONDS, Outcome, keys_of
from shared_model.published.publish import fitting, publish
from shared_model.redis_store import keys
from tests.properties import examples
from tests.shared_model.published.test_publish import RELEASE, epoch, key, pointed, scores


def point_to(client: "redis.Redis", ds: str, token: int, insist: bool = False) -> Outcome:
    return publish(client, epoch(ds, token), scores(3).items(), insist=insist).outcome


def answering(client: "redis.Redis") -> str:
    return pointed(client).get(b"epoch", b"").decode()


def present(client: "redis.Redis") -> set[str]:
    """Names of epochs with any key left."""
    prefix = keys.epoch_scores(RELEASE, "")
    return {name.decode().removeprefix(prefix) for name in client.scan_iter(f"{prefix}*")}


@pytest.fixture
def three_nights(redis_client: "redis.Redis") -> "redis.Redis":
    for day in (13, 14, 15):
        point_to(redis_client, f"2026-01-{day}", 1)
    return redis_client


def test_two_epochs_are_kept_behind_the_one_that_answers(three_nights: "redis.Redis") -> None:
    assert point_to(three_nights, "2026-01-16", 1) is Outcome.MOVED
    assert present(three_nights) == {"2026-01-14.1", "2026-01-15.1", "2026-01-16.1"}
    assert pointed(three_nights)[b"previous"] == b"2026-01-15.1 2026-01-14.1"


def test_publishing_a_kept_epoch_again_leaves_it_kept(three_nights: "redis.Redis") -> None:
    assert point_to(three_nights, "2026-01-14", 1) is Outcome.OLDER
    assert epochs.whole(three_nights, RELEASE, "2026-01-14.1") == 3


def test_a_person_may_publish_an_older_day_and_retries_of_the_newer_do_not_undo_it(three_nights: "redis.Redis") -> None:
    assert point_to(three_nights, "2026-01-10", 7, insist=True) is Outcome.MOVED
    assert answering(three_nights) == "2026-01-10.7"
    assert point_to(three_nights, "2026-01-15", 1) is Outcome.BARRED
    assert point_to(three_nights, "2026-01-16", 1) is Outcome.MOVED


def test_a_rollback_has_the_epoch_before_answer(three_nights: "redis.Redis") -> None:
    three_nights.expire(keys.epoch_scores(RELEASE, "2026-01-14.1"), 10)
    done = epochs.roll_back(three_nights, RELEASE, "2026-01-15", latest_token=1)
    assert (done.was, done.now, answering(three_nights)) == ("2026-01-15.1", "2026-01-14.1", "2026-01-14.1")
    assert not three_nights.exists(*keys_of(RELEASE, "2026-01-15.1"))
    # The restored epoch has the lifetime of a newly published one.
    assert all(KEEP_SECONDS - 60 < three_nights.ttl(name) <= KEEP_SECONDS for name in keys_of(RELEASE, done.now)[:3])


def test_what_was_rolled_back_stays_back_until_it_is_scored_again(three_nights: "redis.Redis") -> None:
    epochs.roll_back(three_nights, RELEASE, "2026-01-15", latest_token=4)
    for token in (1, 4):
        assert point_to(three_nights, "2026-01-15", token) is Outcome.BARRED, "begun before the rollback"
    assert present(three_nights) == {"2026-01-13.1", "2026-01-14.1"}
    assert point_to(three_nights, "2026-01-15", 5) is Outcome.MOVED


def test_a_person_may_undo_a_rollback(three_nights: "redis.Redis") -> None:
    epochs.roll_back(three_nights, RELEASE, "2026-01-15", latest_token=1)
    assert point_to(three_nights, "2026-01-15", 1, insist=True) is Outcome.MOVED
    assert answering(three_nights) == "2026-01-15.1"


def test_two_rollbacks_go_back_two_and_the_first_barrier_stands(three_nights: "redis.Redis") -> None:
    epochs.roll_back(three_nights, RELEASE, "2026-01-15", latest_token=1)
    epochs.roll_back(three_nights, RELEASE, "2026-01-14", latest_token=1)
    assert answering(three_nights) == "2026-01-13.1"
    assert point_to(three_nights, "2026-01-15", 1) is Outcome.BARRED
    assert point_to(three_nights, "2026-01-14", 9) is Outcome.BARRED


def test_a_rollback_passes_over_what_has_expired_and_ends_at_none(three_nights: "redis.Redis") -> None:
    three_nights.delete(keys.epoch_filter(RELEASE, "2026-01-14.1"))
    assert epochs.roll_back(three_nights, RELEASE, "2026-01-15", latest_token=1).now == "2026-01-13.1"
    assert epochs.roll_back(three_nights, RELEASE, "2026-01-13", latest_token=1).now == ""
    assert answering(three_nights) == ""
    with pytest.raises(JobError, match="nothing was rolled back: no epoch is live for release"):
        epochs.roll_back(three_nights, RELEASE, "2026-01-13", latest_token=1)
    assert point_to(three_nights, "2026-01-16", 1) is Outcome.MOVED


def test_a_rollback_that_is_repeated_goes_back_once(three_nights: "redis.Redis") -> None:
    epochs.roll_back(three_nights, RELEASE, "2026-01-15", latest_token=1)
    with pytest.raises(
        JobError, match=r"rolled back: epoch 2026-01-14\.1, of ds=2026-01-14, is live .*, and ds=2026-01-15 is not"
    ):
        epochs.roll_back(three_nights, RELEASE, "2026-01-15", latest_token=1)
    assert answering(three_nights) == "2026-01-14.1"


def test_a_rollback_never_takes_back_what_was_published_meanwhile(
    three_nights: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    look = epochs.whole

    def publish_meanwhile(client: "redis.Redis", release: str, name: str) -> int | None:
        monkeypatch.setattr(epochs, "whole", look)
        point_to(client, "2026-01-16", 1)
        return look(client, release, name)

    monkeypatch.setattr(epochs, "whole", publish_meanwhile)
    with pytest.raises(JobError, match="another epoch was published meanwhile"):
        epochs.roll_back(three_nights, RELEASE, "2026-01-15", latest_token=1)
    assert answering(three_nights) == "2026-01-16.1"


_DIES = """
import os, signal, sys, redis
from tests.shared_model.published.test_publish import epoch, scores
from shared_model.published.publish import publish

def until_killed():
    for number, item in enumerate(scores(12_000).items()):
        if number == 11_000:
            print("writing", flush=True)
            signal.pause()
        yield item

publish(redis.Redis.from_url(sys.argv[1]), epoch("2026-01-15", 1), until_killed())
"""


def test_a_publisher_that_is_killed_leaves_what_answered_and_nothing_for_ever(
    redis_client: "redis.Redis", redis_url: str
) -> None:
    point_to(redis_client, "2026-01-15", 1)
    before = redis_client.dump(keys.epoch_scores(RELEASE, "2026-01-15.1"))
    redis_client.delete(keys.epoch_filter(RELEASE, "2026-01-15.1"))
    command = [sys.executable, "-c", _DIES, redis_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()}) as publisher:
        assert publisher.stdout
        assert publisher.stdout.readline() == b"writing\n"
        publisher.send_signal(signal.SIGKILL)
    assert redis_client.dump(keys.epoch_scores(RELEASE, "2026-01-15.1")) == before
    [staged] = present(redis_client) - {"2026-01-15.1"}
    assert 0 < redis_client.ttl(keys.epoch_scores(RELEASE, staged)) <= 600
    assert point_to(redis_client, "2026-01-15", 1) is Outcome.ALREADY_LIVE
    assert epochs.whole(redis_client, RELEASE, "2026-01-15.1") == 3


class Pointer(RuleBasedStateMachine):
    """Any order of publishing, insisting and rolling back, against the rules said in a few lines of Python."""

    client: "redis.Redis"
    TURN = st.tuples(st.sampled_from(["2026-01-14", "2026-01-15", "2026-01-16"]), st.integers(1, 12))

    @initialize()
    def start(self) -> None:
        self.client.flushall()
        self.at: tuple[str, int] | None = None
        self.kept: list[tuple[str, int]] = []
        self.barrier = ("", 0)

    @rule(turn=TURN, insist=st.booleans())
    def publish(self, turn: tuple[str, int], insist: bool) -> None:
        allowed = insist or (turn > self.barrier and (self.at is None or turn > self.at))
        outcome = point_to(self.client, *turn, insist=insist)
        if turn == self.at:
            assert outcome is Outcome.ALREADY_LIVE
            return
        assert (outcome is Outcome.MOVED) == allowed
        if not allowed:
            return
        if self.at and self.at > turn:
            self.barrier = max(self.barrier, self.at)
        behind = [self.at, *self.kept] if self.at else self.kept
        self.at, self.kept = turn, [each for each in behind if each != turn][:2]

    @rule(begun=st.integers(0, 12))
    def roll_back(self, begun: int) -> None:
        if self.at is None:
            return
        epochs.roll_back(self.client, RELEASE, self.at[0], begun)
        self.barrier = max(self.barrier, (self.at[0], max(self.at[1], begun)))
        self.at, self.kept = (self.kept[0], self.kept[1:]) if self.kept else (None, [])

    @invariant()
    def what_answers_and_what_is_kept_is_there_and_nothing_else(self) -> None:
        names = [f"{ds}.{token}" for ds, token in ([self.at] if self.at else []) + self.kept]
        assert answering(self.client) == (names[0] if self.at else "")
        assert present(self.client) == set(names)
        assert all(epochs.whole(self.client, RELEASE, name) == 3 for name in names)


@pytest.mark.hypothesis
def test_the_pointer_keeps_its_rules_in_any_order(redis_client: "redis.Redis") -> None:
    Pointer.client = redis_client
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Pointer, settings=hypothesis_settings(max_examples=examples(30), stateful_step_count=25)
    )


def value(size: int) -> PublishedScore:
    """A score of about `size` bytes."""
    return PublishedScore(scores=[0.5] * (size // 4))


@pytest.mark.parametrize("size", [8, 40, 100, 1540])
@pytest.mark.parametrize("megabytes", [0.5, 4.2])
def test_an_epoch_stays_within_its_memory_and_uses_most_of_it(
    redis_client: "redis.Redis", size: int, megabytes: float
) -> None:
    room = int(megabytes * 1e6)
    many = ((key(number), value(size)) for number in range(100_000))
    published = publish(redis_client, epoch(), many, max_bytes=room)
    assert 0 < published.keys < 100_000
    names = keys_of(RELEASE, epoch().name)
    used = sum(redis_client.memory_usage(name, samples=0) or 0 for name in names)
    assert 0.6 * room < used <= room
    assert published.bytes == pytest.approx(used, rel=0.05)


def test_what_comes_first_is_what_stays() -> None:
    items = [(key(number), value(40)) for number in range(100)]
    some = list(fitting([items[0], *items], 10_000))
    assert [each for each, _ in some] == [each for each, _ in items[: len(some)]]
    assert 10 < len(some) < 100

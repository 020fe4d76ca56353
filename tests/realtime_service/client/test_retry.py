"""The rule by which a call is made again, and the budget that bounds it: without a network."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime_service.client.errors import CallError, error_of
from realtime_service.client.retry import FIRST_PAUSE, Attempts, Retries, pause
from realtime_service.rpc.retryable import Failure, RetryBudget, failure_of

NOT_SENT = "connections to all backends failing; last error: UNKNOWN: Connection refused"
NEVER_AGAIN = set(grpc.StatusCode) - {
    grpc.StatusCode.OK,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}

codes = st.sampled_from([code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
details = st.sampled_from(["", NOT_SENT, "Stream removed (Socket closed)", "Cancelling all calls"])
hints = st.none() | st.integers(0, 3_000)


@dataclass(frozen=True)
class Fails:
    """One attempt: how it fails, and after how many seconds. `hint` in milliseconds."""

    code: grpc.StatusCode
    details: str = ""
    hint: int | None = None
    takes: float = 0.01

    @property
    def error(self) -> CallError:
        return error_of(self.code, self.details, (("retry-after-ms", str(self.hint)),) if self.hint is not None else ())

    @property
    def failure(self) -> Failure:
        return failure_of(self.code, self.details, None if self.hint is None else self.hint / 1000)


@dataclass
class Played:
    """The attempts that one call made of those it could have made."""

    made: list[Fails] = field(default_factory=list)
    began: list[float] = field(default_factory=list)


def play(fails: Sequence[Fails], attempts: int, seconds: float, budget: RetryBudget | None = None) -> Played:
    now, played = 0.0, Played()
    call = Attempts(attempts, seconds, budget or RetryBudget(), lambda: now)
    for attempt in fails:
        played.made.append(attempt)
        played.began.append(now)
        now += attempt.takes
        try:
            now += call.failed(attempt.error)
        except CallError:
            return played
    return played


@given(
    st.lists(st.builds(Fails, codes, details, hints, st.floats(0, 1)), min_size=1, max_size=12),
    st.integers(1, 5),
    st.floats(0.001, 5),
)
def test_a_call_is_made_again_only_where_that_is_safe_and_in_time(
    fails: list[Fails], attempts: int, seconds: float
) -> None:
    played = play(fails, attempts, seconds)
    kinds = [attempt.failure for attempt in played.made]
    assert len(played.made) <= attempts
    assert Failure.FINAL not in kinds[:-1]
    # What may have arrived arrives twice at most, and so does what was refused.
    assert kinds[:-1].count(Failure.LOST) <= 1
    assert kinds[:-1].count(Failure.REFUSED) <= 1
    assert all(began < seconds for began in played.began)
    for attempt, (began, again) in zip(played.made, itertools.pairwise(played.began), strict=False):
        least = (attempt.hint or 0) / 1000 if attempt.failure is Failure.REFUSED else FIRST_PAUSE / 2
        assert again >= began + attempt.takes + least


@pytest.mark.parametrize("code", sorted(NEVER_AGAIN, key=lambda code: code.name))
@pytest.mark.parametrize("hint", [None, 5])
def test_what_no_repetition_helps_is_called_once(code: grpc.StatusCode, hint: int | None) -> None:
    assert len(play([Fails(code, hint=hint)] * 3, 3, 10).made) == 1


@pytest.mark.parametrize(
    ("fails", "made"),
    [
        (Fails(grpc.StatusCode.UNAVAILABLE, NOT_SENT), 4),
        (Fails(grpc.StatusCode.UNAVAILABLE, "Stream removed (Socket closed)"), 2),
        (Fails(grpc.StatusCode.CANCELLED, "Cancelling all calls"), 2),
        (Fails(grpc.StatusCode.RESOURCE_EXHAUSTED, hint=20), 2),
        # Without a hint no repetition helps: the request is too large.
        (Fails(grpc.StatusCode.RESOURCE_EXHAUSTED), 1),
    ],
)
def test_how_often_each_failure_is_met(fails: Fails, made: int) -> None:
    assert len(play([fails] * 9, 4, 10).made) == made


def test_a_hint_beyond_the_deadline_is_not_waited_for() -> None:
    refused = Fails(grpc.StatusCode.RESOURCE_EXHAUSTED, hint=90)
    assert len(play([refused] * 2, 3, seconds=0.08).made) == 1
    assert len(play([refused] * 2, 3, seconds=1.0).made) == 2


@given(st.floats(0, 0.999), st.integers(1, 6))
def test_the_pause_of_what_was_not_sent_doubles_and_is_never_short(draw: float, times: int) -> None:
    """Pauses of a millisecond have hung calls in the transport."""
    seconds = pause([Failure.NOT_SENT] * times, 10, 100.0, None, draw)
    assert seconds is not None
    assert 0.01 * 2 ** (times - 1) <= seconds <= 0.03 * 2 ** (times - 1)


@given(st.lists(st.booleans(), max_size=600))
def test_calls_made_again_are_a_tenth_of_the_answered_and_ten(answered: list[bool]) -> None:
    budget, again = RetryBudget(), 0
    for number, it in enumerate(answered):
        if it:
            budget.earn()
        else:
            again += budget.spend()
        assert again <= 10 + 0.1 * sum(answered[: number + 1])


def test_a_long_quiet_time_saves_up_a_hundred() -> None:
    budget = RetryBudget()
    for _ in range(10_000):
        budget.earn()
    assert sum(budget.spend() for _ in range(200)) == 100


def test_without_budget_or_once_closed_a_call_is_made_once() -> None:
    lost = Fails(grpc.StatusCode.UNAVAILABLE)
    spent = RetryBudget()
    while spent.spend():
        pass
    assert len(play([lost] * 3, 3, 10, spent).made) == 1
    retries = Retries(3)
    assert retries.begin(1.0).failed(lost.error) > 0
    under_way = retries.begin(1.0)
    retries.close()
    under_way.answered()
    with pytest.raises(CallError):
        under_way.failed(lost.error)


def test_a_client_makes_at_least_one_attempt() -> None:
    with pytest.raises(ValueError, match="attempts=0: expected 1 or more"):
        Retries(0)

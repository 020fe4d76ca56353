"""Which replicas are ejected, and for how long: without a network, on a simulated clock."""

from dataclasses import dataclass

import grpc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from realtime_service.cluster.outlier_detection import (
    FAILURES,
    FIRST_SECONDS,
    LONGEST_SECONDS,
    OutlierDetector,
    Sign,
    sign_of,
)

KNOWN = ("a", "b", "c", "d", "e")


@dataclass(frozen=True)
class Event:
    """The end of a call to a replica, and the seconds since the event before."""

    replica: str
    sign: Sign
    after: float


@dataclass(frozen=True)
class Look:
    """The known and the reachable replicas."""

    known: frozenset[str]
    reachable: frozenset[str]
    after: float


some = st.frozensets(st.sampled_from(KNOWN))
events = st.builds(
    Event, st.sampled_from(KNOWN), st.sampled_from([Sign.ALIVE, Sign.FAILED, Sign.UNREACHABLE]), st.floats(0, 3)
)
looks = st.builds(Look, some, some, st.floats(0, 10))


#: An answer to a call from before the ejection: the trial after it still ends with its first failure.
ANSWERED_WHILE_EJECTED: list[Event | Look] = [
    Event("a", Sign.UNREACHABLE, 0.0),
    Event("a", Sign.ALIVE, 1.0),
    Look(frozenset("ab"), frozenset("a"), 0.0),
    Event("a", Sign.FAILED, 0.0),
]


@given(st.lists(events | looks, max_size=60), st.floats(0, 0.999))
@example(ANSWERED_WHILE_EJECTED, 0.0)
def test_at_most_half_are_ejected_and_only_after_failures(history: list[Event | Look], draw: float) -> None:
    outliers, now, known = OutlierDetector(lambda: draw), 0.0, frozenset(KNOWN)
    in_a_row = dict.fromkeys(KNOWN, 0)
    for it in history:
        now += it.after
        before = outliers.ejected
        if isinstance(it, Look):
            known = it.known
            outliers.settle(known, it.reachable, now)
            assert outliers.ejected <= before
        elif it.sign is Sign.ALIVE:
            in_a_row[it.replica] *= it.replica in before
            outliers.answered(it.replica)
            assert outliers.ejected == before
        else:
            in_a_row[it.replica] += FAILURES if it.sign is Sign.UNREACHABLE else 1
            ejected = outliers.failed(it.replica, it.sign, known, now)
            assert (outliers.ejected - before == {it.replica}) == ejected
            assert not ejected or in_a_row[it.replica] >= FAILURES
        assert len(outliers.ejected & known) <= len(known) // 2


@given(st.integers(1, 40), st.floats(0, 0.999))
def test_an_ejection_lasts_twice_as_long_as_the_one_before_within_bounds(times: int, draw: float) -> None:
    outliers, now = OutlierDetector(lambda: draw), 0.0
    expected = FIRST_SECONDS
    for number in range(times):
        # On trial, one failure is enough.
        assert [outliers.failed("a", Sign.FAILED, KNOWN, now) for _ in range(1 if number else FAILURES)][-1]
        outliers.settle(KNOWN, KNOWN, now + 0.74 * expected)
        assert outliers.ejected == {"a"}
        outliers.settle(KNOWN, KNOWN, now + 1.26 * expected)
        assert not outliers.ejected
        now += 2 * expected
        expected = min(LONGEST_SECONDS, 2 * expected)
    outliers.answered("a")
    assert [outliers.failed("a", Sign.FAILED, KNOWN, now) for _ in range(FAILURES)] == [False] * (FAILURES - 1) + [True]
    outliers.settle(KNOWN, KNOWN, now + 1.26 * FIRST_SECONDS)
    assert not outliers.ejected


def test_an_unreachable_replica_stays_ejected() -> None:
    outliers = OutlierDetector(lambda: 0.5)
    assert outliers.failed("a", Sign.UNREACHABLE, KNOWN, 0.0)
    outliers.settle(KNOWN, [], 1_000.0)
    assert outliers.ejected == {"a"}
    outliers.settle(KNOWN, ["a"], 1_000.1)
    assert not outliers.ejected


def test_an_answer_to_a_call_from_before_does_not_end_an_ejection() -> None:
    outliers = OutlierDetector(lambda: 0.5)
    outliers.failed("a", Sign.UNREACHABLE, KNOWN, 0.0)
    outliers.answered("a")
    assert outliers.ejected == {"a"}
    # Failures of such calls do not lengthen it.
    assert not outliers.failed("a", Sign.UNREACHABLE, KNOWN, 0.5)
    outliers.settle(KNOWN, KNOWN, 1.0)
    assert not outliers.ejected


@pytest.mark.parametrize("known", [(), ("a",), ("b",)])
def test_the_last_replica_is_never_ejected(known: tuple[str, ...]) -> None:
    assert not OutlierDetector(lambda: 0.0).failed("a", Sign.UNREACHABLE, known, 0.0)


def test_a_replica_that_is_gone_is_forgotten() -> None:
    outliers = OutlierDetector(lambda: 0.5)
    outliers.failed("a", Sign.UNREACHABLE, KNOWN, 0.0)
    outliers.settle(KNOWN[1:], KNOWN, 0.5)
    assert outliers.ejected == {"a"}
    outliers.settle(KNOWN[1:], KNOWN, 1.0)
    assert not outliers.ejected


@pytest.mark.parametrize(
    ("code", "details", "seconds", "sign"),
    [
        (grpc.StatusCode.UNAVAILABLE, "Stream removed (ping timeout)", 0.1, Sign.UNREACHABLE),
        (grpc.StatusCode.UNAVAILABLE, "Stream removed (Socket closed)", 0.1, Sign.FAILED),
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: …", 0.0, Sign.FAILED),
        (grpc.StatusCode.UNAVAILABLE, "the text 'ping timeout' killed a worker", 0.0, Sign.FAILED),
        (grpc.StatusCode.CANCELLED, "Cancelling all calls", 0.1, Sign.NONE),
        (grpc.StatusCode.UNAVAILABLE, "Received RST_STREAM with error code 7", 0.1, Sign.NONE),
        (grpc.StatusCode.INTERNAL, "internal error", 0.1, Sign.FAILED),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", 0.3, Sign.FAILED),
        # A caller with a timeout of a few milliseconds cannot have a replica ejected.
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", 0.03, Sign.NONE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed before the answer was there", 0.3, Sign.ALIVE),
        (grpc.StatusCode.INVALID_ARGUMENT, "texts: is empty", 0.1, Sign.ALIVE),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "the lane is full", 0.1, Sign.ALIVE),
        (grpc.StatusCode.NOT_FOUND, "model", 0.1, Sign.ALIVE),
    ],
)
def test_the_sign_of_the_end_of_a_call(code: grpc.StatusCode, details: str, seconds: float, sign: Sign) -> None:
    assert sign_of(code, details, seconds) is sign

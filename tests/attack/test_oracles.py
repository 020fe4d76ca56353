"""Which figures break a promise."""

from dataclasses import replace

import pytest

from protos.scoring.v1.scoring_pb2 import ScoreRequest
from realtime_service.transport.messages import parse
from tests.attack import hostile
from tests.attack.oracles import Seen, broken

CONTROL = Seen(1200, 1.0, 10.0, 5.0, 0.0, 20.0, 100, 1000.0, 1)


def test_what_valid_calls_cost_breaks_nothing() -> None:
    assert list(broken(CONTROL, CONTROL)) == []


@pytest.mark.parametrize(
    ("worse", "said"),
    [
        ({"in_time": 0.98}, "0.980 of the good caller's calls in time"),
        ({"p99_ms": 21.0}, "p99 is 21.0 ms, 10.0 beside valid calls"),
        ({"accept_ms": 56.0}, "waits 56 ms to be accepted, 5 beside valid calls"),
        ({"callback_ms": 51.0}, "a callback used 51 ms"),
        ({"growth_mb": 85.0}, "memory grew by 85 MB, 20 beside valid calls"),
        ({"wrong": (("INTERNAL: /m: x", 3),)}, "3 calls ended INTERNAL: /m: x"),
    ],
)
def test_each_figure_breaks_its_promise(worse: dict[str, object], said: str) -> None:
    (line,) = broken(replace(CONTROL, **worse), CONTROL)  # type: ignore[arg-type]
    assert said in line


def test_valid_calls_that_fail_are_nothing_to_compare_with() -> None:
    (line,) = broken(CONTROL, replace(CONTROL, failed=2))
    assert "2 of 100 valid calls were not answered" in line
    assert list(broken(CONTROL, replace(CONTROL, failed=1))) == []


@pytest.mark.parametrize("size", [0, 1_000, 300_000])
def test_valid_calls_have_an_attacks_size_and_one_short_text(size: int) -> None:
    raw = hostile.padded(size)
    assert abs(len(raw) - max(size, len(hostile.padded(0)))) <= 1
    assert list(parse(ScoreRequest, raw).texts) == ["where is my card"]

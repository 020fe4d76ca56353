"""Which figures break a promise."""

from dataclasses import replace

import pytest

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

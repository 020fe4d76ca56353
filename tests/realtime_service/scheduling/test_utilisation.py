"""The utilisation of a lane: arrival rate × service time ÷ streams."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime_service.scheduling.utilisation import MEMORY_SECONDS, Utilisation
from shared_model.types import ServingPath

LATENCY, DYNAMIC = ServingPath.LATENCY, ServingPath.DYNAMIC


@pytest.mark.parametrize("streams", [1, 2, 8])
@pytest.mark.parametrize(("rate", "service_time"), [(50, 0.002), (200, 0.003), (400, 0.002)])
def test_utilisation_is_rate_times_service_time_over_streams(rate: int, service_time: float, streams: int) -> None:
    utilisation, now = Utilisation([LATENCY, DYNAMIC], streams), 1000.0
    for _ in range(int(rate * 6 * MEMORY_SECONDS)):
        now += 1 / rate
        utilisation.arrived(LATENCY, service_time, now)
    assert utilisation.of(LATENCY, now) == pytest.approx(rate * service_time / streams, rel=0.02)
    assert utilisation.of(DYNAMIC, now) == 0.0


def test_old_work_decays() -> None:
    utilisation = Utilisation([LATENCY])
    utilisation.arrived(LATENCY, 5.0, 100.0)
    assert utilisation.of(LATENCY, 100.0) == pytest.approx(5.0 / MEMORY_SECONDS)
    assert utilisation.of(LATENCY, 100.0 + 5 * MEMORY_SECONDS) < 0.01 * utilisation.of(LATENCY, 100.0)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10)), max_size=50))
def test_utilisation_is_never_negative_and_never_grows_without_arrivals(arrivals: list[tuple[float, float]]) -> None:
    utilisation, now = Utilisation([LATENCY]), 0.0
    for pause, work in arrivals:
        before = utilisation.of(LATENCY, now)
        now += pause
        assert 0.0 <= utilisation.of(LATENCY, now) <= before
        utilisation.arrived(LATENCY, work, now)

"""workers × threads, scaled to the machine by the table of lanes; no core belongs to two workers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime_service.process.cores import WORKER_BYTES, worker_cores
from realtime_service.settings import ServiceSettings
from shared_model import settings
from shared_model.errors import SettingError


def sized(cores: int, **environment: str) -> list[int]:
    """The number of cores of each worker."""
    named = {f"TANDEM_{name.upper()}": value for name, value in environment.items()}
    return [len(owned) for owned in worker_cores(settings.load(ServiceSettings, named), range(cores))]


@pytest.mark.parametrize(
    ("cores", "lanes", "expected"),
    [
        (32, "latency,dynamic,throughput", [4] * 8),
        (32, "throughput", [8] * 4),
        (64, "latency", [8] * 8),
        (16, "latency", [4] * 4),
        (16, "throughput", [8] * 2),
        (16, "dynamic", [16]),
        (16, "dynamic,throughput", [8] * 2),
        (2, "latency,dynamic,throughput", [2]),
        (2, "throughput", [2]),
        (1, "latency", [1]),
    ],
)
def test_the_table_is_scaled_to_the_machine(cores: int, lanes: str, expected: list[int]) -> None:
    assert sized(cores, lanes=lanes) == expected


def test_the_table_is_a_setting() -> None:
    assert sized(16, latency_workers="2", latency_threads="8") == [8, 8]
    assert sized(16, threads="2") == [2] * 8


def test_a_number_of_workers_shares_the_cores() -> None:
    assert sized(16, workers="3") == [5, 5, 5]
    assert sized(2, workers="1") == [2]


@pytest.mark.parametrize(("workers", "memory"), [(1, 0.5), (1, 1.0), (2, 2.0), (5, 5.9), (8, 8.0), (8, 100.0)])
def test_the_table_starts_no_more_workers_than_the_memory_limit_allows(workers: int, memory: float) -> None:
    """`memory`: in units of one worker's need."""
    assert len(worker_cores(ServiceSettings(), range(32), memory * WORKER_BYTES)) == workers


def test_more_workers_than_memory_allows_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert len(worker_cores(ServiceSettings(workers=4), range(8), 3 * WORKER_BYTES)) == 4
    assert "TANDEM_WORKERS=4: 4 workers need about 6.0 GB, and the memory limit is 4.5 GB" in caplog.text


@given(st.integers(1, 64), st.integers(1, 64))
def test_no_core_has_two_workers(cores: int, workers: int) -> None:
    if workers > cores:
        with pytest.raises(
            SettingError, match=f"TANDEM_WORKERS='{workers}': expected a number that fits {cores} cores"
        ):
            sized(cores, workers=str(workers))
        return
    owned = worker_cores(ServiceSettings(workers=workers), range(100, 100 + cores))
    flat = [core for some in owned for core in some]
    assert len(owned) == workers
    assert len(set(flat)) == len(flat)
    assert set(flat) <= set(range(100, 100 + cores))
    assert len({len(some) for some in owned}) == 1


def test_more_threads_than_cores_are_refused() -> None:
    with pytest.raises(SettingError, match="2 workers of 4 threads need 8"):
        sized(6, workers="2", threads="4")

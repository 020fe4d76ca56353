"""The work of each worker of a service, as the others see it, in memory that they share."""

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from realtime_service.cluster import worker_loads
from realtime_service.cluster.worker_loads import WorkerLoads
from realtime_service.routing.snapshot import Option, Replica
from realtime_service.settings import SERVED
from shared_model.types import ServingPath

LATENCY, DYNAMIC, THROUGHPUT = SERVED
WORKERS = 3


@pytest.fixture
def workers(tmp_path: Path) -> list[WorkerLoads]:
    return started(tmp_path / "loads")


def started(path: Path) -> list[WorkerLoads]:
    """Workers "w0", "w1", …, which have told their names."""
    worker_loads.create(path, WORKERS)
    found = [WorkerLoads(path, WORKERS, index) for index in range(WORKERS)]
    for index, loads in enumerate(found):
        loads.announce(f"w{index}")
    return found


def replica(name: str) -> Replica:
    """One with all lanes, known by its heartbeats."""
    lanes = [Option(name, path, 9.0, 0.010, 0.0, real_time=Option(name, path, 9.0, 0.010, 0.0)) for path in SERVED]
    return Replica(ReplicaDescription(id=name), tuple(lanes))


def seen(loads: WorkerLoads, name: str, path: ServingPath, real_time: bool = False) -> float:
    """Seconds until one text would be answered by a worker, as another one predicts it."""
    found = replica(name)
    loads.attach(found)
    (lane,) = (it for it in found.options if it.path is path)
    return (lane.real_time if real_time and lane.real_time else lane).predicted(1)


def test_work_is_seen_at_once_and_until_it_ends(workers: list[WorkerLoads]) -> None:
    assert seen(workers[0], "w1", DYNAMIC) == pytest.approx(0.010)
    workers[1].own(DYNAMIC, real_time=False).add(0.040)
    assert seen(workers[0], "w1", DYNAMIC) == seen(workers[2], "w1", DYNAMIC) == pytest.approx(0.050)
    assert seen(workers[0], "w2", DYNAMIC) == pytest.approx(0.010)
    workers[1].own(DYNAMIC, real_time=False).add(-0.040)
    assert seen(workers[0], "w1", DYNAMIC) == pytest.approx(0.010)


def test_a_request_waits_for_more_urgent_work_only(workers: list[WorkerLoads]) -> None:
    workers[1].own(DYNAMIC, real_time=False).add(0.040)
    assert seen(workers[0], "w1", LATENCY) == pytest.approx(0.010)
    assert seen(workers[0], "w1", DYNAMIC, real_time=True) == pytest.approx(0.010)
    assert seen(workers[0], "w1", THROUGHPUT) == pytest.approx(0.050)
    workers[1].own(LATENCY, real_time=True).add(0.003)
    assert seen(workers[0], "w1", DYNAMIC, real_time=True) == pytest.approx(0.013)


def test_a_replica_of_another_service_is_known_by_its_heartbeats_only(workers: list[WorkerLoads]) -> None:
    for name in ("w3", "w", "w1x"):
        assert seen(workers[0], name, DYNAMIC) == 9.0
    # Nor does a worker send requests to itself.
    assert seen(workers[0], "w0", DYNAMIC) == 9.0


def test_the_work_of_a_worker_that_ended_is_dropped_when_the_next_takes_its_place(
    workers: list[WorkerLoads], tmp_path: Path
) -> None:
    sent = replica("w1")
    workers[0].attach(sent)
    sent.options[1].tell(0.5, real_time=False)
    workers[0].own(DYNAMIC, real_time=False).add(0.25)
    workers[2].own(DYNAMIC, real_time=False).add(0.125)
    WorkerLoads(tmp_path / "loads", WORKERS, 0).announce("later")
    assert seen(workers[2], "w1", DYNAMIC) == pytest.approx(0.010)
    assert seen(workers[2], "later", DYNAMIC) == pytest.approx(0.010)
    assert seen(workers[2], "w0", DYNAMIC) == 9.0
    assert seen(workers[1], "w2", DYNAMIC) == pytest.approx(0.135)


work = st.tuples(
    st.integers(0, WORKERS - 1), st.integers(0, WORKERS - 1), st.sampled_from(SERVED), st.booleans(), st.floats(0, 1)
)


@given(st.lists(work, max_size=30), st.data())
def test_all_see_the_sum_of_what_came_to_each(
    tmp_path_factory: pytest.TempPathFactory,
    began: list[tuple[int, int, ServingPath, bool, float]],
    data: st.DataObject,
) -> None:
    """Work of any worker at any other, of which some has ended."""
    workers = started(tmp_path_factory.mktemp("loads") / "loads")
    ended = data.draw(st.sets(st.sampled_from(range(len(began))))) if began else set()
    expected = defaultdict[tuple[int, int], float](float)
    for number, (origin, at, path, real_time, seconds) in enumerate(began):
        for sign in (1, -1) if number in ended else (1,):
            if at == origin:
                workers[origin].own(path, real_time).add(sign * seconds)
            else:
                other = replica(f"w{at}")
                workers[origin].attach(other)
                other.options[SERVED.index(path)].tell(sign * seconds, real_time)
        if number not in ended:
            expected[at, 2 * SERVED.index(path) + (not real_time)] += seconds
    for at, looking in ((0, 1), (1, 2), (2, 0)):
        for place, path in enumerate(SERVED):
            for real_time in (True, False):
                ahead = sum(expected[at, queue] for queue in range(2 * place + (not real_time) + 1))
                assert seen(workers[looking], f"w{at}", path, real_time) == pytest.approx(0.010 + ahead, abs=1e-9)

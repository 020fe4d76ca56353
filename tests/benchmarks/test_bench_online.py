"""The arithmetic of `make bench-online`: when calls are due, what counts as answered in time, which bounds are held."""

import math
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.benchmarks import bench_online, rounds
from tests.benchmarks.bench_online import GROUPS
from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.online import burst_rows, texts
from tests.benchmarks.online.burst_rows import Lane, Row, Seen
from tests.benchmarks.online.cpu import CpuShares, Watch
from tests.benchmarks.online.slow_cores import slow_share
from tests.benchmarks.online.stage import Generators
from tests.load import arrivals
from tests.load.calls import LEAST_CALLS, MISSED_MS, OK, RESOURCE_EXHAUSTED, Calls, quantile, statuses
from tests.load.wire import LOST

NEVER = float("nan")


def calls(*rows: tuple[float, float, float, int]) -> Calls:
    """Rows of (due, sent, ended, status), seconds."""
    due, sent, ended, status = (np.array(column) for column in zip(*rows, strict=True))
    return Calls(due, sent, ended, status.astype(np.int64), cpu_seconds=0.1, wall_seconds=2.0)


def answered(count: int, milliseconds: float = 2.0) -> list[tuple[float, float, float, int]]:
    return [(float(n), float(n), n + milliseconds / 1000, OK) for n in range(count)]


def test_poisson_arrivals_come_at_their_rate_with_independent_gaps() -> None:
    due = arrivals.poisson(200.0, 60.0, seed=1)
    gaps = np.diff(due)
    assert due[0] >= 0
    assert due[-1] < 60
    assert (gaps > 0).all()
    assert len(due) == pytest.approx(12_000, rel=0.05)
    # An exponential distribution's deviation is its mean; equal intervals have no deviation.
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)
    assert (arrivals.poisson(200.0, 60.0, seed=1) == due).all()
    assert len(arrivals.poisson(200.0, 60.0, seed=2)) != len(due)


def test_replayed_arrivals_keep_the_shape_of_their_gaps_and_come_at_the_rate_asked_for() -> None:
    recorded = np.array([0.0, 1.0, 5.0, 6.0])
    due = arrivals.replayed(recorded, rate=50.0, seconds=60.0)
    gaps = np.diff(due)
    assert len(due) == pytest.approx(50 * 60, abs=4)
    assert due[-1] < 60
    assert gaps[0:3] / gaps[0] == pytest.approx([1, 4, 1])
    # After the last comes the first again, an average gap later, and the laps are alike.
    assert gaps[3] / gaps[0] == pytest.approx(2)
    assert gaps[4:8] == pytest.approx(gaps[0:4])


def test_recorded_arrivals_are_read_from_a_column_of_seconds(tmp_path: Path) -> None:
    (tmp_path / "arrivals.csv").write_text("seconds\n0.5\n2.25\n")
    assert arrivals.read(tmp_path / "arrivals.csv").tolist() == [0.5, 2.25]


def test_a_quantile_is_the_nearest_rank() -> None:
    assert quantile([float(n) for n in range(1, 101)], 0.95) == 95
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2
    with pytest.raises(CannotMeasure, match="no calls were made"):
        quantile([], 0.5)


def test_latency_counts_from_when_a_call_was_due_not_from_when_it_was_sent() -> None:
    late = calls((10.0, 10.5, 10.6, OK))
    assert late.milliseconds == pytest.approx([600])
    assert late.late_ms == pytest.approx(500)


@pytest.mark.parametrize(
    ("ended", "status"), [(NEVER, LOST), (1.001, LOST), (1.001, RESOURCE_EXHAUSTED), (1.001, 4), (1.001, 13)]
)
def test_a_call_without_a_good_answer_misses_every_bound(ended: float, status: int) -> None:
    one = calls((1.0, 1.0, ended, status))
    assert one.milliseconds == pytest.approx([MISSED_MS])
    assert (one.good(50), one.goodput(50)) == (0, 0.0)
    assert one.rate(0, 2) == 0


def test_goodput_is_of_the_calls_that_were_due() -> None:
    mixed = calls(
        (1.0, 1.0, 1.050, OK),
        (2.0, 2.0, 2.051, OK),
        (3.0, 3.0, 3.001, RESOURCE_EXHAUSTED),
        (4.0, NEVER, NEVER, LOST),
    )
    assert mixed.good(50.001) == 1
    assert mixed.goodput(50.001) == 0.25
    assert statuses(mixed) == {LOST: 1, OK: 2, RESOURCE_EXHAUSTED: 1}
    assert mixed.refusals_ms() == pytest.approx([1.0])
    # A call that was never sent is the generator's fault, and it says so.
    assert mixed.late_ms == MISSED_MS


def test_lost_calls_are_in_the_p95() -> None:
    lost = [(float(n), float(n), NEVER, LOST) for n in range(101)]
    assert calls(*answered(1_900), *lost[:100]).p95() == pytest.approx(2.0)
    assert calls(*answered(1_899), *lost).p95() == MISSED_MS


def test_a_p95_of_few_calls_is_not_one() -> None:
    assert LEAST_CALLS == 1_372
    assert calls(*answered(1_372)).p95() == pytest.approx(2.0)
    with pytest.raises(CannotMeasure, match="1371 calls, a p95 takes 1372"):
        calls(*answered(1_371)).p95()


def test_a_rate_counts_answers_inside_its_window() -> None:
    assert calls(*answered(10)).rate(2.0, 6.0) == 1.0
    assert calls(*answered(10)).due_from(7.0).due.tolist() == [7.0, 8.0, 9.0]
    assert calls(*answered(2)).generator_share == 0.05


def test_a_load_tells_what_threads_of_the_service_took_of_a_core() -> None:
    def compute() -> None:
        while time.thread_time() < 0.2:
            pass

    with Watch(psutil.Process()) as watch:
        engine = threading.Thread(target=compute)
        engine.start()
        engine.join()
    shares = watch.shares([calls(*answered(3)), calls((1.0, 1.0, NEVER, LOST))])
    assert shares.engines > 5 * shares.event_loop
    # Two generators took 0.1 s each, as long as the engine; three calls ended.
    assert shares.generators == pytest.approx(shares.engines, rel=0.2)
    assert shares.calls == pytest.approx(15 * shares.generators)
    assert len(watch.slow_cores.pieces) > 3
    assert shares.slow == slow_share(watch.slow_cores.pieces)


@pytest.mark.heavy
def test_no_thread_is_left_where_the_service_ends_during_a_load() -> None:
    service = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with pytest.raises(psutil.NoSuchProcess), Watch(psutil.Process(service.pid)):
        service.communicate(b"\n")
    assert not any(thread.name == "slow-cores" for thread in threading.enumerate())


def test_shares_of_a_core_are_the_median_of_the_times_that_a_load_ran() -> None:
    several = [
        CpuShares(0.1, 1.5, 0.3, 0.1, 100.0, 0.02),
        CpuShares(0.2, 1.2, 0.1, 0.0, 90.0, 0.05),
        CpuShares(0.9, 1.3, 0, 0, 0, 0),
    ]
    assert CpuShares.median(several) == {
        "event_loop": 0.2,
        "engines": 1.3,
        "generators": 0.1,
        "idle": 0.0,
        "calls": 90.0,
        "slow": 0.02,
    }
    assert str(several[0]) == (
        "event loop 0.10, engines 1.50, generators 0.30, idle 0.10; 100 calls a second; cores slow for 2.0% of the time"
    )


def test_a_core_is_slow_where_equal_work_takes_over_three_times_the_usual() -> None:
    assert slow_share([1.0] * 90 + [2.9] * 4 + [3.1] * 6) == 0.06
    assert slow_share([]) == 0


def test_a_load_that_was_sent_late_is_named() -> None:
    generators = Generators()
    generators.note("on time", calls((1.0, 1.004, 1.1, OK)))
    generators.note("late", calls((1.0, 1.006, 1.1, OK)))
    assert generators.late == ["late"]
    assert generators.late_ms == pytest.approx(6)
    assert generators.share == 0.05


def seen(
    calls: Calls, timeout_ms: int = 80, counted_late: int = 0, echo_p99_ms: float = 5.0, shape: str = "cv5"
) -> Seen:
    """A row at a capacity of 100 calls a second and 10 ms on the way."""
    return Seen(Row(shape, 70, timeout_ms), Lane(110.0, 100.0, 10.0), calls, counted_late, echo_p99_ms, 1)


def test_a_row_is_judged_from_when_its_calls_were_sent() -> None:
    # The ideal queue answers all but the fourth of calls that come together: 20, 30, 40 and 50 ms.
    row = seen(calls(*((ms / 1e6, 0.004, 0.004 + ms / 1000, OK) for ms in (10, 44, 46, 47))), timeout_ms=45)
    assert row.ideal == 0.75
    assert row.in_time == 0.5
    assert row.of_bound == pytest.approx(0.5 / (0.75 * 0.95))
    assert row.late_share == 0.5


@pytest.mark.parametrize(("shape", "bound"), [("cv5", 0.95), ("cv13", 0.90), ("trace", 0.90)])
def test_bursty_rows_have_a_lower_bound_and_a_sample_that_happens_to_be_bursty_has_not(
    shape: str, bound: float
) -> None:
    together = [(0.0, 0.0, 0.010, OK)] * 100 + [(9.0, 9.0, 9.010, OK)]
    row = seen(calls(*together), shape=shape)
    assert row.of_bound == pytest.approx(1 / row.ideal / bound)


def test_a_table_counts_calls_that_are_neither_answered_nor_refused() -> None:
    ends = [
        (0.0, 0.0, 0.010, OK),
        (1.0, 1.0, 1.010, RESOURCE_EXHAUSTED),
        (2.0, 2.0, 2.010, 4),
        (3.0, 3.0, math.nan, -1),
    ]
    header, line = burst_rows.table([seen(calls(*ends))]).splitlines()
    assert line[header.index("failed") :].split()[0] == "2"


def test_refusals_are_compared_with_the_echo_of_their_row() -> None:
    refused = [(float(n), float(n), n + 0.030, RESOURCE_EXHAUSTED) for n in range(10)]
    assert seen(calls(*refused), echo_p99_ms=8.0).refusal_over_echo_ms == pytest.approx(22)
    assert seen(calls(*answered(10))).refusal_over_echo_ms == 0


def test_the_service_may_miscount_a_tenth_of_late_answers_or_a_five_hundredth_of_all_calls() -> None:
    late = [(float(n), float(n), n + 0.100, OK) for n in range(100)]
    assert seen(calls(*late), counted_late=90).miscount == pytest.approx(1)
    assert seen(calls(*late), counted_late=105).miscount == pytest.approx(0.5)
    assert seen(calls(*answered(1_000)), counted_late=2).miscount == pytest.approx(1)


def test_rows_are_named_and_those_of_a_recording_need_one() -> None:
    every = burst_rows.rows("", has_trace=True)
    assert len({row.name for row in every}) == len(every) == 21
    assert {row.shape for row in burst_rows.rows("", has_trace=False)} == {"cv5", "cv13"}
    assert [row.name for row in burst_rows.rows("cv13-35-80-deadline,cv5-70-80", True)] == [
        "cv5-70-80",
        "cv13-35-80-deadline",
    ]
    with pytest.raises(CannotMeasure, match="there is no row trace-15-80"):
        burst_rows.rows("trace-15-80", has_trace=False)


def test_texts_of_our_own_stand_in_where_no_folder_is_given() -> None:
    material = texts.load(None)
    assert len(material.interactive) == len(set(material.interactive)) > 10_000
    assert len(material.bulk) == len(set(material.bulk)) > 40_000
    assert (np.diff(material.recorded) > 0).all()
    assert "our own" in material.source


@pytest.mark.heavy
def test_a_folder_without_the_texts_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_online.main(["--data", str(tmp_path), "--out", str(tmp_path / "out.json")]) == 2
    printed = capsys.readouterr()
    assert re.fullmatch(r"bench-online: .*conversation.csv cannot be read: .*; pass another DATA=DIR\n", printed.err)
    assert not (tmp_path / "out.json").exists()


def test_figures_carry_the_bounds_that_were_promised() -> None:
    assert {target.name: target.bound for target in rounds.targets(GROUPS, list(GROUPS))} == {
        "overhead_ms": "<= 0.6",
        "saturation_of_floor": ">= 0.90",
        "saturation_of_engine": ">= 0.72",
        "poisson60_tail": "<= 1",
        "mixed30_p95_ms": "<= 50",
        "mixed60_p95_ms": "<= 50",
        "mixed30_over_alone": "<= 3",
        "mixed60_over_alone": "<= 3",
        "bulk_share30": ">= 0.60",
        "bulk_share60": ">= 0.60",
        "throughput_of_engine": ">= 0.75",
        "throughput_p95_ms": "<= 500",
        "goodput30": ">= 0.99",
        "goodput60": ">= 0.97",
        "goodput90": ">= 0.85",
        "goodput200": ">= 0.75",
        "goodput500": ">= 0.75",
        "sleep_x2": ">= 0.85",
        "sleep_x5": ">= 0.85",
        "sleep_x10": ">= 0.85",
        "refusal_p99_ms": "<= 20",
        "burst_of_bound": ">= 1",
        "burst_late_share": "<= 0.005",
        "burst_refusal_over_echo_ms": "<= 20",
        "burst_miscount": "<= 1",
        "tls_overhead_ms": "<= 0.3",
        "rss_mb": "<= 650",
        "rss_switch_mb": "<= 900",
        "start_all_lanes_s": "<= 5",
        "two_workers_of_one": "<= 1.3",
    }

"""The demo succeeds only when all of it happened, and says of each target whether it was met."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tandem_stack.airflow_api import RunState
from tandem_stack.calls import EXAMPLE, Outcome
from tandem_stack.separate import Reached
from tandem_stack.summary import Host, Nightly, Summary, Took

from batch_job import run_record
from batch_job.run_record import (
    Approval,
    Findings,
    Input,
    Publication,
    RunRecord,
    Runtime,
    Scoring,
    State,
    Verdict,
    Worker,
)
from realtime_service.settings import ServiceSettings, lanes
from shared_model.types import Device, ServingPath

SCORING = Scoring(
    1, "plan", 3, 10_000, {"empty": 2}, 1, "bf16", {"score": 12.5}, 301.4, workers=(Worker(1, 6_000), Worker(2, 4_000))
)
RECORD = RunRecord(
    ds="2026-01-14",
    run_id="run",
    planned_at="2026-01-15T02:00:00Z",
    release="minilm",
    runtime=Runtime("/runtime", "3.11.7"),
    input=Input("/messages", (), "fingerprint"),
    state=State.PUBLISHED,
    token=1,
    scoring=SCORING,
    publication=Publication("2026-01-14.1", 8_000, moved=True, live=True),
    findings=Findings(
        10_000, {}, (), verdicts=(Verdict("labels", run_record.Outcome.FAIL, 1.0, "", "they moved", True),)
    ),
    approval=Approval("ada", "2026-01-15T02:10:00+00:00", "a new product"),
)
TASKS = {"plan": "success", "score": "success", "approve": "skipped"}
NIGHT = Nightly(RunState("run", "2026-01-14", "success", TASKS), RECORD)


def outcome(
    path: ServingPath, milliseconds: float = 5.0, answers: int = 100, others: int = 0, engine_ms: float = 0.0
) -> Outcome:
    """One caller's. `engine_ms`: of each answer."""
    elsewhere = Counter({"RESOURCE_EXHAUSTED": others}) if others else Counter[str]()
    seconds = answers * milliseconds / 1000
    return Outcome(path, (milliseconds,) * answers, seconds, elsewhere, engine_seconds=answers * engine_ms / 1000)


@pytest.fixture
def summary() -> Summary:
    return Summary(
        nights=[NIGHT],
        outcomes=[outcome(path) for path in ServingPath],
        beside=outcome(ServingPath.LATENCY),
        answer="stolen 91.0%; mood: upset 80.0%",
        reached=[Reached(ServingPath.LATENCY, 50, {"latency": 50, "throughput": 0, "router": 0})],
        lanes=tuple(lanes(ServiceSettings(), Device.CPU).values()),
        host=Host(cores=2, streams=2),
        airflow="http://127.0.0.1:8080",
        took=Took(486.0, 216.4, 3_000_000_000),
        state=str(Path.cwd() / ".tandem" / "demo"),
    )


def lane_row(summary: Summary, lane: ServingPath) -> str:
    rows = summary.text().partition("Service levels in this run")[2].splitlines()
    return next(row for row in rows if row.startswith(f"  {lane} "))


def test_a_whole_demo_misses_nothing(summary: Summary) -> None:
    assert summary.missing() == []
    assert "MISSING" not in summary.text()
    assert "2026-01-14  published  10,000  800             2            bf16" in summary.text()
    assert "2026-01-14  success: plan success, score success, approve skipped" in summary.text()
    assert f"every head\n  {EXAMPLE}\n  stolen 91.0%; mood: upset 80.0%\n" in summary.text()


def test_it_ends_with_the_commands_that_read_the_demos_own_scores(summary: Summary) -> None:
    commands = summary.text().partition("Read the demo's scores\n")[2].splitlines()[:3]
    assert commands == [
        "  export TANDEM_STATE=.tandem/demo",
        "  .venv/bin/python -m batch_job read --ds 2026-01-14 --limit 5",
        "  .venv/bin/python -m batch_job report --ds 2026-01-14",
    ]


def test_the_time_of_a_cold_demo_includes_installing(summary: Summary) -> None:
    assert "Whole demo: 486 s (216 s of it to install), 3.0 GB of memory at most" in summary.text()
    warm = replace(summary, took=Took(110.0, 0.4, 3_000_000_000))
    assert "Whole demo: 110 s, 3.0 GB of memory at most" in warm.text()


@pytest.mark.parametrize("path", list(ServingPath))
def test_a_path_that_was_not_taken_is_missed(summary: Summary, path: ServingPath) -> None:
    elsewhere = [outcome(each, answers=10, others=90) if each is path else outcome(each) for each in ServingPath]

    missed = replace(summary, outcomes=elsewhere)

    assert missed.missing() == [f"the {path} path was not seen"]
    assert f"MISSING: the {path} path was not seen" in missed.text()


@pytest.mark.parametrize(
    "night",
    [
        replace(NIGHT, run=replace(NIGHT.run, state="failed")),
        replace(NIGHT, record=None),
        replace(NIGHT, record=replace(RECORD, publication=None)),
    ],
    ids=["failed", "wrote nothing", "not published"],
)
def test_a_night_that_did_not_happen_is_missed(summary: Summary, night: Nightly) -> None:
    missed = replace(summary, nights=[night, NIGHT])
    assert missed.missing() == [f"the nightly run of 2026-01-14 ended {night.run.state}"]


def test_a_person_who_accepted_a_refused_night_is_shown_and_missed(summary: Summary) -> None:
    shown = summary.text().partition("Refused by a gate, and accepted by a person\n")[2].splitlines()[:2]
    assert shown == [
        "  2026-01-14  labels: they moved",
        "              accepted by ada at 2026-01-15T02:10:00+00:00: a new product",
    ]
    alone = replace(summary, nights=[replace(NIGHT, record=replace(RECORD, approval=None))])
    assert alone.missing() == ["no refused night was accepted by a person"]


def test_a_task_that_airflow_skipped_is_missed(summary: Summary) -> None:
    run = replace(NIGHT.run, tasks={"plan": "success", "report": "skipped"})
    assert replace(summary, nights=[replace(NIGHT, run=run)]).missing() == ["report of 2026-01-14 was skipped"]


def test_calls_that_an_endpoint_of_another_kind_answered_are_missed(summary: Summary) -> None:
    astray = [Reached(ServingPath.LATENCY, 50, {"latency": 49, "throughput": 1, "router": 0})]

    missed = replace(summary, reached=astray)

    assert missed.missing() == ["latency calls did not all reach the latency endpoint"]
    assert "  latency  50     latency 49, throughput 1" in missed.text()


def test_targets_are_judged_by_their_own_bounds(summary: Summary) -> None:
    slow = replace(summary, outcomes=[outcome(path, milliseconds=60.0) for path in ServingPath])

    met, missed = (" ".join(lane_row(each, ServingPath.LATENCY).split()) for each in (summary, slow))
    assert met == "latency p95 <= 50 ms: 5.0 met >= 50/s: 200 met"
    assert missed == "latency p95 <= 50 ms: 60.0 missed >= 50/s: 17 missed"
    throughput = " ".join(lane_row(slow, ServingPath.THROUGHPUT).split())
    assert throughput == "throughput >= 1,000/s: 17 missed p95 <= 500 ms: 60.0 met"


def test_a_target_that_this_host_cannot_reach_is_no_failure(summary: Summary) -> None:
    """The engines alone would need longer, or do fewer."""
    small = replace(summary, outcomes=[outcome(path, milliseconds=60.0, engine_ms=55.8) for path in ServingPath])

    assert "missed" not in small.text()
    assert lane_row(small, ServingPath.THROUGHPUT).startswith(
        "  throughput  target 1,000/s is for a 4 x 8-core host; 2 cores here: 17/s, 93 % of what the engine can do"
    )
    latency = lane_row(small, ServingPath.LATENCY)
    assert (
        "target p95 <= 50 ms is for a 4 x 8-core host; 2 cores here: 60.0 ms, of which the engine takes 55.8 ms"
        in latency
    )
    assert "target 50/s is for a 4 x 8-core host; 2 cores here: 17/s, 93 % of what the engine can do" in latency


def test_a_target_that_this_host_can_reach_is_missed(summary: Summary) -> None:
    slow = replace(summary, outcomes=[outcome(path, milliseconds=60.0, engine_ms=0.9) for path in ServingPath])

    throughput = " ".join(lane_row(slow, ServingPath.THROUGHPUT).split())
    assert throughput == "throughput >= 1,000/s: 17 missed p95 <= 500 ms: 60.0 met"


def test_engines_run_as_many_calls_at_once_as_there_are_callers_and_streams() -> None:
    calls = Outcome(ServingPath.THROUGHPUT, (300.0,) * 1000, 4.0, Counter(), callers=96, engine_seconds=7.0)

    assert calls.engine_rate(streams=2) == pytest.approx(286, abs=1)
    assert replace(calls, callers=1).engine_rate(streams=2) == pytest.approx(143, abs=1)
    assert replace(calls, engine_seconds=0.0).engine_rate(streams=2) == float("inf")


def test_dynamic_is_judged_by_the_deadlines_of_its_calls(summary: Summary) -> None:
    late = replace(summary, outcomes=[outcome(path, answers=90, others=10) for path in ServingPath])

    assert "100 of 100 inside their own deadline  met" in lane_row(summary, ServingPath.DYNAMIC)
    assert "90 of 100 inside their own deadline  missed" in lane_row(late, ServingPath.DYNAMIC)


def test_percentiles_are_by_nearest_rank() -> None:
    calls = Outcome(ServingPath.LATENCY, tuple(map(float, range(100, 0, -1))), 1.0, Counter())

    assert (calls.percentile(0.50), calls.percentile(0.95), calls.percentile(1.0)) == (50.0, 95.0, 100.0)

"""Many days in one Spark application: each has a record and a commit of its own, as if it were scored alone."""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
import redis
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from batch_job import lookup, run_record
from batch_job.attempt import Attempt
from batch_job.checks.examination import Written
from batch_job.launch import spark_submit
from batch_job.run_record import Findings, RunRecord, Runtime, State
from batch_job.scoring.options import ScoringOptions
from batch_job.steps import score, score_days
from batch_job.steps.context import StepContext
from batch_job.tables import table
from shared_model.redis_store import keys
from shared_model.settings import StateSettings
from shared_model.types import Device
from tests.batch_job.conftest import message, planned, write_day

FIRST, SECOND, THIRD, LAST = DAYS = [f"2026-03-{day:02d}" for day in (1, 2, 3, 4)]
ROWS = 60
#: How long one day waits for another.
_SECONDS = 60.0


@dataclass(frozen=True)
class House:
    state: StateSettings
    client: "redis.Redis"

    def score(self, *days: str, force: bool = False, publish: bool = False, name: str = "") -> int:
        return score_days.score_days(days[0], days[-1], force, publish, name)

    def runs(self, ds: str) -> list[RunRecord]:
        """The newest first."""
        return [run_record.read(file.path) for file in lookup.record_files(self.state.runs_dir, ds)]

    def ids(self, ds: str) -> Counter[str]:
        batches = table.read_files(DeltaTable(str(self.state.scores_table)), ds, ["id"])
        return Counter(row["id"] for batch in batches for row in batch.to_pylist())

    def committed(self) -> list[str]:
        """Days in the order of their commits."""
        history = DeltaTable(str(self.state.scores_table)).history()
        return [commit["tandem.ds"] for commit in reversed(history) if "tandem.ds" in commit]


@pytest.fixture
def house(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> House:
    """Four days of messages; the step takes the session's Spark, and leaves it running."""

    @contextmanager
    def opened(
        context: StepContext, _: str, release: str, __: Runtime
    ) -> Iterator[tuple[SparkSession, ScoringOptions]]:
        yield spark, ScoringOptions.from_settings(context.state, context.nightly, release, Device.CPU)

    monkeypatch.setattr(score_days, "open_session", opened)
    for name, value in {**environment, "TANDEM_NIGHTLY_UNIT_ROWS": "25"}.items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    for day in DAYS:
        write_day(state, [message(number, f"on {day} my card {number} broke") for number in range(ROWS)], day)
    return House(state, client)


def judge_first_day_after_writing(monkeypatch: pytest.MonkeyPatch, ds: str) -> None:
    written = threading.Event()
    write, examine = Attempt.write, score.examine

    def noting(attempt: Attempt) -> Written:
        done = write(attempt)
        if attempt.run.ds == ds:
            written.set()
        return done

    def late(run: RunRecord, *arguments: object) -> Findings:
        assert run.ds != FIRST or written.wait(_SECONDS)
        return examine(run, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Attempt, "write", noting)
    monkeypatch.setattr(score, "examine", late)


def test_each_day_has_a_record_and_a_commit_and_a_refused_one_stops_no_other(
    house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those between the first and the last end early, and still the last is judged and committed after the first."""
    write_day(house.state, [message(1, "hello"), b"no message"], SECOND)
    (house.state.messages_dir / f"ds={THIRD}" / "messages.jsonl").unlink()
    judge_first_day_after_writing(monkeypatch, LAST)
    assert house.score(*DAYS) == 1
    [first], [second], [last] = (house.runs(ds) for ds in (FIRST, SECOND, LAST))
    assert (first.state, second.state, last.state) == (State.COMMITTED, State.REFUSED, State.COMMITTED)
    assert not house.runs(THIRD)
    assert first.run_id == second.run_id == last.run_id
    assert (house.committed(), house.ids(LAST)) == ([FIRST, LAST], house.ids(FIRST))
    assert house.ids(FIRST) == Counter(f"m{number:05d}" for number in range(ROWS))
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["day", "verdict", "rows", "quarantined", "problem"]
    assert [line.split()[:2] for line in lines] == [
        [FIRST, "committed"],
        [SECOND, "refused"],
        [THIRD, "no"],
        [LAST, "committed"],
    ]
    assert lines[0].split()[2:] == ["60", "0", "-"]
    assert "1 of 2 lines are quarantined, more than 1.0%" in lines[1]
    assert f"ds={THIRD}" in lines[2]
    reported = lookup.record_files(house.state.runs_dir, FIRST)[0]
    assert (house.state.runs_dir / FIRST / reported.run_id / "report.html").exists()


def test_a_day_is_written_beside_the_one_before_and_judged_after_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge_first_day_after_writing(monkeypatch, SECOND)
    assert house.score(FIRST, THIRD) == 0
    assert house.committed() == [FIRST, SECOND, THIRD]
    held_against = [run.findings.before if run.findings else None for ds in DAYS[:3] for run in house.runs(ds)]
    assert held_against == ["", FIRST, SECOND]


def test_what_is_committed_is_unchanged_and_only_force_scores_it_again(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    assert house.score(FIRST, SECOND) == 0
    assert house.score(FIRST, THIRD) == 0
    assert house.committed() == [FIRST, SECOND, THIRD]
    newest = [house.runs(ds)[0] for ds in DAYS[:3]]
    assert [run.state for run in newest] == [State.UNCHANGED, State.UNCHANGED, State.COMMITTED]
    assert [run.scoring.rows if run.scoring else 0 for run in newest] == [ROWS] * 3
    assert capsys.readouterr().out.count("unchanged") == 2
    assert house.score(FIRST, FIRST, force=True) == 0
    assert house.committed() == [FIRST, SECOND, THIRD, FIRST]


def nightly(house: House, ds: str, run_id: str = "night", planned_before: timedelta = timedelta()) -> None:
    path = house.state.runs_dir / ds / f"{run_id}.json"
    run_record.write(path, planned(house.state, house.client, ds, run_id))
    written = (datetime.now(UTC) - planned_before).timestamp()
    os.utime(path, (written, written))


def test_a_nightly_run_that_is_planned_meanwhile_goes_first(
    house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Days that are being scored are finished."""
    examine = score.examine

    def meanwhile(run: RunRecord, *arguments: object) -> Findings:
        if run.ds == FIRST and not house.runs(LAST):
            nightly(house, LAST)
        return examine(run, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(score, "examine", meanwhile)
    assert house.score(*DAYS) == spark_submit.YIELDED
    done = house.committed()
    assert done in ([FIRST], [FIRST, SECOND])
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith(f"{len(DAYS) - len(done)} days are left: run night of ds={LAST}, planned at ")
    [night] = house.runs(LAST)
    assert (night.state, night.token) == (State.PLANNED, 0)
    run_record.write(house.state.runs_dir / LAST / "night.json", replace(night, state=State.FAILED))
    assert house.score(*DAYS) == 0
    assert house.committed() == DAYS


def test_a_call_of_the_same_name_goes_on_where_it_yielded_also_by_force_and_with_its_release(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    examine = score.examine

    def meanwhile(run: RunRecord, *arguments: object) -> Findings:
        if run.ds == FIRST and not house.runs(LAST):
            nightly(house, LAST)
        return examine(run, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as during:
        during.setattr(score, "examine", meanwhile)
        assert house.score(*DAYS, force=True, name="forced") == spark_submit.YIELDED
    done = house.committed()
    [night] = house.runs(LAST)
    run_record.write(house.state.runs_dir / LAST / "night.json", replace(night, state=State.FAILED))
    [first] = house.runs(FIRST)
    monkeypatch.setattr(score_days, "active_release", lambda *_: "another-0000")
    assert house.score(*DAYS, force=True, publish=True, name="forced") == 0
    assert (done, house.committed()) == (DAYS[: len(done)], DAYS)
    assert house.runs(FIRST) == [first]
    assert {run.release for ds in DAYS for run in house.runs(ds)} == {first.release}
    assert house.runs(LAST)[0].state is State.PUBLISHED


@pytest.mark.parametrize(
    ("run_id", "age"), [("night", lookup.DUE + timedelta(minutes=1)), (f"{lookup.MANY_DAYS}killed", timedelta())]
)
def test_a_run_that_was_given_up_and_one_of_many_days_are_not_waited_for(
    house: House, run_id: str, age: timedelta
) -> None:
    nightly(house, LAST, run_id, age)
    assert house.score(FIRST, FIRST) == 0


def test_an_unexpected_error_ends_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cause is not of one day."""
    begun = list[str]()

    def broken(_: StepContext, run: RunRecord, *__: object) -> RunRecord:
        begun.append(run.ds)
        raise ZeroDivisionError

    monkeypatch.setattr(score_days, "score_day", broken)
    assert house.score(*DAYS) == spark_submit.UNEXPECTED
    assert set(begun) <= {FIRST, SECOND}


def test_the_newest_committed_day_is_published(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    write_day(house.state, [b"no message"], LAST)
    assert house.score(*DAYS, publish=True) == 1
    [run] = house.runs(THIRD)
    assert run.state is State.PUBLISHED
    epoch = house.client.hget(keys.epoch_pointer(run.release), "epoch")
    assert epoch == f"{THIRD}.{run.token}".encode()
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"ds={THIRD} of the default archive: ")
    assert house.runs(FIRST)[0].publication is None

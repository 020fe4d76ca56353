"""Deferred requests cannot be answered: the night before them is committed, and is published."""

import asyncio
import html
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import redis.asyncio

from batch_job import driver, run_record
from batch_job.launch import spark_submit
from batch_job.run_record import State
from batch_job.shards import schemas
from batch_job.steps import score
from batch_job.tables import table
from shared_model.errors import Stale
from tests.batch_job.conftest import DAY
from tests.batch_job.deferred.deferring import forget_leases, submit
from tests.batch_job.shards import written
from tests.integration.nightly.conftest import LINES, House, check_complete, old_rows
from tests.redis_nodes import free_port

BEFORE = "2026-01-13"


@pytest.fixture
def damaged(house: House) -> Path:
    """A file of answers of the night before, which a drain must read lest it answers a request twice."""
    folder = house.state.scores_table
    answers = written.file(folder, written.batch(["a"], ["yes"]), ds=BEFORE, source=schemas.DEFERRED)
    table.add_deferred(folder, BEFORE, lambda _: answers)
    file = folder / answers.path
    file.write_bytes(file.read_bytes() + b"?")
    return file


def with_redis(house: House, run: Callable[["redis.asyncio.Redis"], Awaitable[object]]) -> None:
    async def connected() -> None:
        async with redis.asyncio.Redis.from_url(house.state.redis_url) as client:
            await run(client)

    asyncio.run(connected())


def launched(house: House, *flags: str) -> int:
    return driver.main([*spark_submit.step_args(DAY, str(house.path)), *flags])


def page(house: House) -> str:
    """The report's, which is taken away: the next step writes it anew."""
    report = house.path.with_suffix("") / "report.html"
    said = html.unescape(report.read_text())
    report.unlink()
    return said


def test_a_drain_that_fails_neither_undoes_nor_hides_a_committed_night(
    house: House, in_this_spark: None, damaged: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with_redis(house, lambda client: submit(client, "a text of no message"))
    assert launched(house) == 0
    run = house.record
    assert (run.state, run.drained) == (State.COMMITTED, 0)
    check_complete(house, run)
    assert run.problem.startswith("deferred requests were left waiting: ")
    assert f"{damaged.name} cannot be read: it is not as it was written" in run.problem
    assert run.problem in capfd.readouterr().err
    assert run.problem in page(house)
    assert run.scoring is not None
    house.publish()
    assert house.answering() == (f"{DAY}.{run.scoring.token}", len(LINES))
    assert house.record.problem == run.problem

    with_redis(house, forget_leases)
    assert launched(house, "--drain") == 2
    assert (house.record.problem, house.record.drained) == (run.problem, 0)
    assert run.problem in page(house)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with_redis(house, forget_leases)
    assert launched(house, "--drain") == 0
    done = house.record
    assert (done.state, done.problem, done.drained) == (State.PUBLISHED, "", 1)
    assert '<th scope="row">deferred requests answered</th><td>1</td>' in page(house)
    assert house.rows().total() == len(LINES) + 1


def test_a_run_that_is_superseded_while_it_drains_stays_stale(
    house: House, in_this_spark: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def superseded(*_: object) -> int:
        raise Stale("attempt 3 has begun")

    monkeypatch.setattr(score, "answer_deferred", superseded)
    assert launched(house) == 3
    assert (house.record.state, house.record.problem) == (State.COMMITTED, "")


def test_a_redis_that_is_gone_is_one_line_and_worth_another_try(
    house: House, in_this_spark: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEM_REDIS_URL", f"redis://127.0.0.1:{free_port()}")
    assert launched(house, "--drain", "--active") == spark_submit.UNAVAILABLE
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("batch_job drain: Redis did not answer: ")


def test_a_drain_without_a_day_answers_with_the_active_release(house: House, in_this_spark: None) -> None:
    """The run was planned with a release that has been taken away since; the record keeps its name."""
    gone = f"{house.release.manifest.name}-0123456789ab"
    run_record.write(house.path, replace(house.record, release=gone))
    with_redis(house, lambda client: submit(client, "a text of no message"))
    assert launched(house, "--drain", "--active") == 0
    assert (house.record.release, house.record.drained) == (gone, 1)
    assert [release for (_, _, release) in house.rows() - old_rows()] == [house.release.id]

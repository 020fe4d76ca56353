"""`drain --check`: what waits for a drain, in a line, without a JVM."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis.asyncio

from batch_job import run_record
from batch_job.launch import spark_submit
from batch_job.run_record import ARCHIVE
from batch_job.steps import backlog
from protos.scoring.v1.scoring_pb2 import ScoreRequest
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model.deferred import Backlog, DeferredQueue
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, NEXT_DAY, Cli
from tests.batch_job.test_run_record import PLANNED
from tests.redis_nodes import free_port

NOW = datetime(2026, 1, 15, 2, tzinfo=UTC)
Submit = Callable[..., None]


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (Backlog(0, None), "0 deferred requests wait"),
        (Backlog(3, None), "3 deferred requests wait, none with a deadline"),
        (Backlog(1200, 61_000), "1,200 deferred requests wait; earliest deadline 2026-01-15 02:01:01 UTC, in 61 s"),
        (Backlog(3, -61_000), "3 deferred requests wait; earliest deadline 2026-01-15 01:58:59 UTC, 61 s ago"),
    ],
)
def test_the_line_has_depth_and_earliest_deadline(found: Backlog, line: str) -> None:
    assert backlog.describe(found, NOW) == line


@pytest.fixture
def environment(environment: dict[str, str]) -> dict[str, str]:
    """Of a host without a Java."""
    return {**environment, "JAVA_HOME": "/nowhere"}


@pytest.fixture
def submit(redis_url: str) -> Submit:
    async def connected(within_ms: int) -> None:
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            work = DeferredWork(request=ScoreRequest(texts=["hello"]), accepted_at_ms=1)
            await DeferredQueue(client).submit("a", work, within_ms)

    return lambda within_ms=0: asyncio.run(connected(within_ms))


@pytest.fixture
def recorded(state: StateSettings) -> Path:
    """Of the latest day; a run of the day before was written after it, one of another input is of a later day."""
    for day, run_id, identity in (
        ("2026-01-16", "other", "/mine/{ds}"),
        (NEXT_DAY, "wanted", ARCHIVE),
        (DAY, "older", ARCHIVE),
    ):
        run = replace(PLANNED, ds=day, run_id=run_id, input=replace(PLANNED.input, identity=identity))
        run_record.write(state.runs_dir / day / f"{run_id}.json", run)
    # Else each step warns.
    state.state.chmod(0o700)
    return state.runs_dir / NEXT_DAY / "wanted.json"


def test_nothing_waits(cli: Cli, recorded: Path) -> None:
    done = cli("drain", "--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 deferred requests wait\n", "")


def test_what_waits_is_for_spark_and_the_run_is_named(cli: Cli, recorded: Path, submit: Submit) -> None:
    submit(within_ms=600_000)
    done = cli("drain", "--check")
    assert (done.returncode, done.stderr) == (spark_submit.CHANGED, "")
    assert done.stdout.startswith("1 deferred requests wait; earliest deadline 20")
    said = cli("drain", "--check", "--json")
    found = json.loads(said.stdout)
    assert said.returncode == spark_submit.CHANGED
    assert (found["ds"], found["record"]) == (NEXT_DAY, str(recorded))
    assert found["line"].startswith("1 deferred requests wait; earliest deadline 20")


def test_before_the_first_plan_nothing_can_be_answered(cli: Cli, state: StateSettings, submit: Submit) -> None:
    submit()
    missing = f"no run of the default archive, {state.messages_dir} is in {state.runs_dir}: plan a day first"
    done = cli("drain", "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"1 deferred requests wait, none with a deadline; {missing}\n"
    whole = cli("drain")
    assert (whole.returncode, whole.stdout, whole.stderr) == (2, "", f"batch_job drain: {missing}\n")


def test_a_limit_of_0_leaves_them_to_idle_lanes(
    cli: Cli, environment: dict[str, str], recorded: Path, submit: Submit
) -> None:
    submit()
    environment["TANDEM_DEFERRED_DRAIN_LIMIT"] = "0"
    done = cli("drain", "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("; TANDEM_DEFERRED_DRAIN_LIMIT=0 leaves them to idle lanes\n")


def test_a_redis_that_is_gone_is_one_line_and_worth_another_try(
    cli: Cli, environment: dict[str, str], recorded: Path
) -> None:
    environment["TANDEM_REDIS_URL"] = f"redis://127.0.0.1:{free_port()}"
    done = cli("drain", "--check", "--json")
    assert (done.returncode, done.stdout) == (spark_submit.UNAVAILABLE, "")
    assert done.stderr.startswith("batch_job drain: Redis did not answer: ")
    assert len(done.stderr.splitlines()) == 1
    assert not spark_submit.is_final(done.returncode)

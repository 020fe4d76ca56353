"""A real Spark for the whole session, the tiny release, and states of their own for runs."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from batch_job.attempt import open_attempt
from batch_job.deferred.scores import DeferredScores
from batch_job.identity import Tables, model_of
from batch_job.launch import spark_submit
from batch_job.run_record import RunRecord, Scoring
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import NightlySettings
from batch_job.steps.plan import plan_run
from batch_job.tables import table
from batch_job.tables.fence import Fence, connect
from shared_model.releases.store import Release
from shared_model.settings import StateSettings
from shared_model.types import Device
from tests.batch_job.deferred.deferring import Spark

DAY, NEXT_DAY = "2026-01-14", "2026-01-15"

#: A small day in many shards; whatever is wrong with its lines is no reason to refuse it.
SMALL = NightlySettings(nightly_task_rows=64, nightly_unit_rows=25, quarantine_share=1.0)


@pytest.fixture(scope="session")
def spark(own_environment: None) -> Iterator[SparkSession]:
    """`local[2]` with the nightly run's own configuration. One JVM serves every module."""
    with pytest.MonkeyPatch.context() as patch:
        given = {**os.environ, "TANDEM_RUNTIME_PREFIX": sys.prefix}
        # Some tests limit how much its workers may write, which would cut the bytecode of a late import short.
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        for name, value in spark_submit.spark_environment(given).items():
            patch.setenv(name, value)
        builder = SparkSession.builder.master("local[2]").appName("tests")
        for name, value in spark_submit.spark_conf(given).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        yield session
        session.stop()


def of_the_release(request: pytest.FixtureRequest, fixture: str) -> Any:
    """Of the tiny release, or of the default one where a module asks for it: there the model is the subject."""
    kind = "default" if request.node.get_closest_marker("default_release") else "tiny"
    return request.getfixturevalue(f"{kind}_{fixture}")


@pytest.fixture(scope="module")
def releases_dir(request: pytest.FixtureRequest) -> Path:
    return Path(of_the_release(request, "releases_dir"))


@pytest.fixture(scope="module")
def release(request: pytest.FixtureRequest) -> Release:
    found: Release = of_the_release(request, "release")
    return found


@pytest.fixture
def state(tmp_path: Path, releases_dir: Path, release: Release, redis_url: str) -> StateSettings:
    """An empty state of the test's own, with the release active and the session's Redis."""
    return StateSettings(state=tmp_path / "state", releases=str(releases_dir), redis_url=redis_url)


@pytest.fixture
def client(redis_url: str) -> Iterator["redis.Redis"]:
    """Redis as the nightly run connects to it: without retries."""
    with connect(redis_url) as own:
        yield own


@pytest.fixture
def options(releases_dir: Path, release: Release) -> ScoringOptions:
    return ScoringOptions(str(releases_dir), release.id, Device.CPU, batch_rows=64, batch_tokens=2048)


@pytest.fixture
async def deferred(redis_url: str) -> "AsyncIterator[redis.asyncio.Redis]":
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def scores(tmp_path: Path) -> DeferredScores:
    return DeferredScores(tmp_path / "scores", DAY, unfinished_seconds=3600)


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch, release: Release) -> Spark:
    spark = Spark(release)
    monkeypatch.setattr("batch_job.deferred.answering._score", spark.score)
    return spark


def message(number: int, text: str) -> bytes:
    return json.dumps({"id": f"m{number:05d}", "text": text}).encode()


def write_day(state: StateSettings, lines: Sequence[bytes], day: str = DAY, file: str = "messages.jsonl") -> None:
    folder = state.messages_dir / f"ds={day}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(b"\n".join(lines) + b"\n")


def planned(state: StateSettings, client: "redis.Redis", day: str = DAY, run_id: str = "run") -> RunRecord:
    return plan_run(state, client, day, run_id)


def attempt(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    run: RunRecord,
    before_commit: Callable[[], object] = lambda: None,
    watch_seconds: float = 600.0,
    force: bool = False,
    settings: NightlySettings = SMALL,
) -> Scoring:
    """One attempt at a partition; by default the watch sleeps, so that the commit rule is on its own."""
    tables = Tables.for_input(state, run.input.identity)
    last = table.last_attempt(tables.folders, run.ds)
    fence = Fence.take(client, run.ds, last, model_of(run.input.identity))

    with open_attempt(spark, run, options, tables, fence, settings, force, watch_seconds) as opened:
        scored = opened.write()
        before_commit()
        return opened.commit(scored, {})


def data_files(folder: Path) -> set[str]:
    """Names of whatever lies where data files lie."""
    return {path.name for path in folder.glob("ds=*/**/*") if path.is_file() and path.suffix != ".json"}


def held_files(folder: Path) -> set[str]:
    return {Path(uri).name for uri in DeltaTable(str(folder)).file_uris()}


Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(state: StateSettings) -> dict[str, str]:
    """Variables of a shell in which the nightly run works on `state`."""
    return {
        **os.environ,
        "TANDEM_STATE": str(state.state),
        "TANDEM_RELEASES": state.releases,
        "TANDEM_REDIS_URL": state.redis_url,
        "TANDEM_SPARK_MASTER": "local[2]",
        "TANDEM_INPUT_WAIT_SECONDS": "0",
    }


@pytest.fixture
def cli(environment: dict[str, str]) -> Cli:
    """Runs one step as a person does, in a process of its own."""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "batch_job", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)

    return run

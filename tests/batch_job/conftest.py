"""A real Spark for the whole session, and states of their own for runs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import redis
from pyspark.sql import SparkSession

from batch_job import plan, planning
from batch_job.fence import connect
from batch_job.record import RunRecord
from batch_job.scoring import ScoringOptions
from shared_model.releases.store import Release
from shared_model.settings import StateSettings
from shared_model.types import Device

DAY = "2026-01-14"


@pytest.fixture(scope="session")
def spark(own_environment: None) -> Iterator[SparkSession]:
    """`local[2]` with the nightly run's own configuration. One JVM serves every module."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in plan.spark_environment({**os.environ, "TANDEM_RUNTIME_PREFIX": sys.prefix}).items():
            patch.setenv(name, value)
        builder = SparkSession.builder.master("local[2]").appName("tests")
        for name, value in plan.SPARK_CONF.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.fixture
def state(tmp_path: Path, releases_dir: Path, release: Release, redis_url: str) -> StateSettings:
    """An empty state of the test's own, with the default release active and the session's Redis."""
    return StateSettings(state=tmp_path / "state", releases=str(releases_dir), redis_url=redis_url)


@pytest.fixture
def client(redis_url: str) -> Iterator["redis.Redis"]:
    """Redis as the nightly run connects to it: without retries."""
    with connect(redis_url) as own:
        yield own


@pytest.fixture
def options(releases_dir: Path, release: Release) -> ScoringOptions:
    return ScoringOptions(str(releases_dir), release.id, Device.CPU, batch_rows=64, batch_tokens=2048)


def message(number: int, text: str) -> bytes:
    return json.dumps({"id": f"m{number:05d}", "text": text}).encode()


def write_day(state: StateSettings, lines: Sequence[bytes], day: str = DAY, file: str = "messages.jsonl") -> None:
    folder = state.messages_dir / f"ds={day}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(b"\n".join(lines) + b"\n")


def planned(state: StateSettings, client: "redis.Redis", day: str = DAY, run_id: str = "run") -> RunRecord:
    return planning.plan_run(state, client, day, run_id)


Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(state: StateSettings) -> dict[str, str]:
    """What a shell in which the nightly run works on `state` has set."""
    return {
        **os.environ,
        "TANDEM_STATE": str(state.state),
        "TANDEM_RELEASES": state.releases,
        "TANDEM_REDIS_URL": state.redis_url,
        "TANDEM_SPARK_MASTER": "local[2]",
    }


@pytest.fixture
def cli(environment: dict[str, str]) -> Cli:
    """Runs one step as a person does, in a process of its own."""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "batch_job", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)

    return run

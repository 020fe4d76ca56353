"""A small day with an older result, and the steps of a night that meet with mishaps."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import redis
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from batch_job import __main__ as steps
from batch_job import run_record
from batch_job.launch import spark_submit
from batch_job.run_record import RunRecord, Runtime
from batch_job.scoring.options import ScoringOptions
from batch_job.steps import drain, score, score_days
from batch_job.steps.context import StepContext
from batch_job.tables import table
from protos.scoring.v1.storage_pb2 import PublishedScore
from shared_model.objects import Location, join, open_objects
from shared_model.published.epochs import Epoch
from shared_model.published.publish import publish
from shared_model.redis_store import keys
from shared_model.releases.store import Release
from shared_model.settings import StateSettings
from shared_model.types import Device
from tests.batch_job import cluster
from tests.batch_job.conftest import (
    DAY,
    cli,
    client,
    environment,
    message,
    options,
    planned,
    spark,
    state,
)
from tests.batch_job.shards import written
from tests.object_store import Proxy

NIGHT = str(Path(__file__).with_name("night.py"))
_NOTES, _RUN = "NIGHT_NOTES", "NIGHT_RUN"

#: Spark starts no second copy of a task on the host of the first.
HOSTS = ["127.0.0.2", "127.0.0.3"]

#: Eight shards, each text once; and lines that are no messages.
LINES = [message(number, f"my card number {number} has not arrived") for number in range(190)]
BAD = [b"", b"no JSON"]
SHARDS = 8
#: Committed and published before: ids that are in both, labels and a release that are not.
OLD = ["yes", "no"] * 20

#: (id, label, release), and how often it is there.
Rows = Counter[tuple[str, str, str]]


@dataclass(frozen=True)
class House:
    """A day, its table and its epochs. `notes`: of mishaps. `run`: by name, one of those of the day."""

    state: StateSettings
    client: "redis.Redis"
    release: Release
    environment: dict[str, str]
    notes: Path
    run: str = "run"

    @property
    def path(self) -> Location:
        return join(self.state.runs_dir, DAY, f"{self.run}.json")

    @property
    def record(self) -> RunRecord:
        return run_record.read(self.path)

    @property
    def version(self) -> int:
        return int(DeltaTable(str(self.state.scores_table)).version())

    @property
    def known(self) -> dict[str, str]:
        """Variables that tag all processes of a run, so that waiting for one run does not reap another, with its exit
        code."""
        return {_NOTES: str(self.notes), _RUN: self.run}

    def night(self, mishap: str, master: str = "local[2]", *conf: str) -> "subprocess.CompletedProcess[str]":
        """`score` in a driver of its own. Executors of a cluster know what it knows, and are waited for by that."""
        command = spark_submit.spark_submit_command(DAY, str(self.path), master)
        conf = (*(f"spark.executorEnv.{name}={value}" for name, value in self.known.items()), *conf)
        options = [part for each in conf for part in ("--conf", each)]
        small = ["--driver-memory", "512m", "--executor-memory", "512m"]
        command[command.index(spark_submit.APPLICATION)] = NIGHT
        return self._run(mishap, [command[0], *small, *options, *command[1:]])

    def night_of_days(self, mishap: str, first: str, last: str) -> "subprocess.CompletedProcess[str]":
        """`score` for many days in a driver of its own."""
        start, application = spark_submit.application_command("local[2]"), [NIGHT, "--from", first, "--to", last]
        small = ["--driver-memory", "512m", "--executor-memory", "512m"]
        return self._run(mishap, [start[0], *small, *start[1:-1], *application, "--prefix", sys.prefix])

    def night_publishes(self, mishap: str) -> "subprocess.CompletedProcess[str]":
        return self._run(mishap, [sys.executable, NIGHT, "publish", *spark_submit.step_args(DAY, str(self.path))])

    def _run(self, mishap: str, command: list[str]) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            command,
            env={**self.environment, **self.known, "NIGHT_MISHAP": mishap},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
            start_new_session=True,
        )
        _wait_for_those_with(self.known)
        return done

    def publish(self) -> RunRecord:
        assert steps.main(["publish", *spark_submit.step_args(DAY, str(self.path))]) == 0
        return self.record

    def finished(self, ds: str = DAY) -> int:
        """Shards that are in place, with their sidecars."""
        found = open_objects(self.state.scores_table).list(f"ds={ds}")
        return sum(it.path.endswith(".json") for it in found)

    def rows(self, ds: str = DAY) -> Rows:
        """The rows of the day that readers see; damage is refused."""
        batches = table.read_files(DeltaTable(str(self.state.scores_table)), ds, ["id", "label", "release"])
        return Counter(tuple(row.values()) for batch in batches for row in batch.to_pylist())

    def answering(self) -> tuple[str, int]:
        """The epoch that answers, and how many texts it knows."""
        epoch = (self.client.hget(keys.epoch_pointer(self.release.id), "epoch") or b"").decode()
        return epoch, int(self.client.hlen(keys.epoch_scores(self.release.id, epoch)))

    def rows_of_files(self) -> list[int]:
        """Of those that lay there when the night committed, that of the older result among them."""
        return list(json.loads((self.notes / "files").read_text()))


def _wait_for_those_with(variables: dict[str, str]) -> None:
    """Until all processes that have inherited these have ended: those of a killed driver follow it soon."""

    def inherited(process: psutil.Process) -> bool:
        try:
            return variables.items() <= process.environ().items()
        except psutil.Error:
            return False

    _, alive = psutil.wait_procs([each for each in psutil.process_iter() if inherited(each)], timeout=60)
    assert not alive


@pytest.fixture
def house(
    state: StateSettings,
    client: "redis.Redis",
    release: Release,
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> House:
    """On a disk, or with the parameter "s3" with all that machines share behind a URL."""
    if getattr(request, "param", "disk") == "s3":
        spark, proxy = request.getfixturevalue("spark"), request.getfixturevalue("s3")
        state = replace(state, store=request.getfixturevalue("s3_url"))
        for name, value in proxy.environment().items():
            monkeypatch.setitem(spark.sparkContext.environment, name, value)
        environment = {**environment, "TANDEM_STORE": state.store}
    own = {
        **{name: value for name, value in environment.items() if value != os.environ.get(name)},
        "TANDEM_NIGHTLY_UNIT_ROWS": "25",
        "TANDEM_QUARANTINE_SHARE": "0.05",
    }
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "notes").mkdir()
    house = House(state, client, release, cluster.environment(own), tmp_path / "notes")
    open_objects(state.messages_dir).put(f"ds={DAY}/messages.jsonl", b"\n".join([*LINES, *BAD]) + b"\n")
    run_record.write(house.path, planned(state, client))
    written.commit(state.scores_table, DAY, OLD)
    publish(client, Epoch(release.id, "bf16", DAY, 1), [(bytes(16), PublishedScore(labels=[0], scores=[1.0]))])
    return house


@pytest.fixture(scope="module")
def master(s3_server: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of two hosts with a core each, whose environment has what a store behind a URL needs."""
    folder = tmp_path_factory.mktemp("cluster")
    with cluster.standalone(cluster.environment(s3_server.environment()), folder, HOSTS, cores=1) as url:
        yield url


@pytest.fixture
def in_this_spark(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    """The `score` and `drain` steps take the session's Spark, and leave it running."""

    @contextmanager
    def opened(context: StepContext, run: RunRecord) -> Iterator[tuple[SparkSession, ScoringOptions]]:
        yield spark, ScoringOptions.from_settings(context.state, context.nightly, run.release, Device.CPU)

    @contextmanager
    def opened_for_days(
        context: StepContext, _: str, release: str, __: Runtime
    ) -> Iterator[tuple[SparkSession, ScoringOptions]]:
        yield spark, ScoringOptions.from_settings(context.state, context.nightly, release, Device.CPU)

    for step in (score, drain):
        monkeypatch.setattr(step, "scoring_session", opened)
    monkeypatch.setattr(score_days, "open_session", opened_for_days)


def old_rows() -> Rows:
    return Counter((f"m{number}", label, "small-0123456789ab") for number, label in enumerate(OLD))


def check_complete(house: House, run: RunRecord) -> None:
    """The whole day, each line once: as a score of the release, or in quarantine."""
    assert run.scoring is not None
    found = house.rows(run.ds)
    assert sorted(found.elements()) == sorted(found)
    assert {each for each, _, _ in found} == {f"m{number:05d}" for number in range(len(LINES))}
    assert {release for _, _, release in found} == {house.release.id}
    assert run.scoring.rows == len(LINES)
    assert run.scoring.quarantined == {"bad_json": 1, "empty": 1}
    assert table.quarantined(house.state.quarantine_table, run.ds, run.scoring.token) == run.scoring.quarantined
    assert run.scoring.rows + sum(run.scoring.quarantined.values()) == run.input.lines

"""A whole night whose every input and output is behind a URL, on a real S3 server."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import redis
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from batch_job import read_scores, run_record
from batch_job.run_record import State
from batch_job.scoring.options import ScoringOptions
from shared_model.demo_messages import DAMAGED_LINES
from shared_model.objects import join, open_objects
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, SMALL, Cli, attempt, message, planned, write_day
from tests.object_store import KEY, SECRET, Fault, Proxy

LINES = [message(number, f"my card number {number % 40} has not arrived") for number in range(200)]


@pytest.fixture
def far(
    state: StateSettings, s3_url: str, spark: SparkSession, s3: Proxy, monkeypatch: pytest.MonkeyPatch
) -> StateSettings:
    """The state with all that machines share behind a URL; releases stay where they are."""
    for name, value in s3.environment().items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    return StateSettings(state=state.state, store=s3_url, releases=state.releases, redis_url=state.redis_url)


def write_far_day(state: StateSettings, lines: list[bytes]) -> None:
    open_objects(state.messages_dir).put(f"ds={DAY}/messages.jsonl", b"\n".join(lines) + b"\n")


def test_a_day_has_the_same_rows_as_on_disk(
    spark: SparkSession, state: StateSettings, far: StateSettings, client: "redis.Redis", options: ScoringOptions
) -> None:
    lines = [*LINES[:100], *DAMAGED_LINES, *LINES[100:]]
    write_day(state, lines)
    write_far_day(far, lines)
    here = attempt(spark, state, client, options, planned(state, client))
    there = attempt(spark, far, client, options, planned(far, client))
    assert (there.content, there.rows, there.quarantined) == (here.content, here.rows, here.quarantined)
    rows = {
        place: {row["id"]: row["label"] for row in read_scores(spark, place, DAY).collect()}
        for place in (state.scores_table, far.scores_table)
    }
    assert len(rows[state.scores_table]) == 200
    assert rows[state.scores_table] == rows[far.scores_table]


def test_finished_shards_of_a_lost_attempt_are_referenced_by_the_next(
    spark: SparkSession, far: StateSettings, client: "redis.Redis", options: ScoringOptions, s3: Proxy
) -> None:
    write_far_day(far, LINES)
    run = planned(far, client)

    def die() -> None:
        raise ZeroDivisionError

    unmerged = replace(SMALL, nightly_file_megabytes=0)
    with pytest.raises(ZeroDivisionError):
        attempt(spark, far, client, options, run, before_commit=die, settings=unmerged)
    left = {it.path for it in open_objects(far.scores_table).list(f"ds={DAY}") if it.path.endswith(".parquet")}
    s3.clear()
    done = attempt(spark, far, client, options, run, settings=unmerged)
    assert (done.units_resumed, done.rows) == (done.units, 200)
    assert {uri.removeprefix(f"{far.scores_table}/") for uri in DeltaTable(str(far.scores_table)).file_uris()} == left
    assert not [path for method, path in s3.seen if method == "PUT" and path.endswith(".parquet")]
    # Once committed, nothing but the day's files is left.
    assert {it.path for it in open_objects(far.scores_table).list(f"ds={DAY}")} == left


def test_a_service_that_fails_now_and_then_loses_and_doubles_nothing(
    spark: SparkSession, far: StateSettings, client: "redis.Redis", options: ScoringOptions, s3: Proxy
) -> None:
    write_far_day(far, LINES)
    run = planned(far, client)
    for fault, times in ((Fault.BUSY, 5), (Fault.CUT, 2), (Fault.LOST, 2), (Fault.STALL, 1)):
        s3.inject(fault, times, path="source%3Darchive" if fault is not Fault.LOST else ".parquet")
    s3.inject(Fault.LOST, 1, path="_delta_log")
    s3.inject(Fault.BUSY, 3, "GET")
    done = attempt(spark, far, client, options, run)
    assert not s3.pending
    assert done.rows == 200
    ids = [row["id"] for row in read_scores(spark, far.scores_table, DAY).collect()]
    assert len(ids) == len(set(ids)) == 200


@pytest.fixture
def command_lines() -> Iterator[set[str]]:
    """Those of all processes that this one starts meanwhile."""
    seen, over = set[str](), threading.Event()

    def look() -> None:
        while not over.wait(0.2):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    seen.add(" ".join(process.cmdline()))

    looking = threading.Thread(target=look)
    looking.start()
    yield seen
    over.set()
    looking.join()


@pytest.mark.proof
def test_a_night_by_its_commands(
    far: StateSettings,
    release: Release,
    cli: Cli,
    environment: dict[str, str],
    s3: Proxy,
    command_lines: set[str],
    tmp_path: Path,
) -> None:
    """Releases too are behind the URL here; no credentials are in what it writes or says, or in a list of processes."""
    store, local = Store(str(join(far.store_root, "releases"))), Path(far.releases)
    source = local / release.manifest.name / release.id
    for path in source.rglob("*"):
        if path.is_file():
            store.files.write(str(path.relative_to(local)), path.read_bytes())
    environment.update(
        TANDEM_STORE=str(far.store_root), TANDEM_RELEASES="", TANDEM_STATE=str(far.state), **s3.environment()
    )
    pointer.promote(store, None, release.id)
    write_far_day(far, [*LINES, b"no message"])
    said = ""
    for step in ("plan", "score", "publish", "report", "read", "runs", "quarantine", "score"):
        done = cli(step, "--ds", DAY)
        assert done.returncode == 0, f"{step}: {done.stdout[-2000:]}{done.stderr[-3000:]}"
        said += done.stdout + done.stderr
    assert "unchanged" in said
    objects = open_objects(far.store_root)
    paths = [it.path for it in objects.list()]
    (record,) = (path for path in paths if path.startswith(f"runs/{DAY}/") and path.count("/") == 2)
    assert run_record.read(join(far.store_root, record)).state in (State.PUBLISHED, State.UNCHANGED)
    assert {f"{record[:-5]}/report.html", f"{record[:-5]}/report.json"} <= set(paths)
    assert json.loads(objects.get(f"{record[:-5]}/report.json"))["scoring"]["rows"] == 200
    written = b"".join(objects.get(path) for path in paths if path.startswith(("runs/", "scores/", "quarantine/")))
    assert any("org.apache.spark.deploy.SparkSubmit" in line for line in command_lines)
    for secret in (KEY, SECRET):
        assert secret not in said + "".join(command_lines)
        assert secret.encode() not in written
    assert not far.state.exists()
    assert os.fspath(tmp_path) not in objects.get(record).decode()

"""Resuming: shards of a killed attempt, and texts with scores in the committed baseline, are not computed again."""

import hashlib
import json
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast
from unittest import mock

import numpy as np
import psutil
import pyarrow as pa
import pytest
import redis
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from batch_job import read_scores
from batch_job.run_record import RunRecord, Scoring
from batch_job.scoring import models, shard_task
from batch_job.scoring.options import ScoringOptions
from batch_job.shards.shard_files import FileReport, Target
from batch_job.spark import task_context
from batch_job.tables import resumable, table
from batch_job.tables.fence import Fence
from shared_model.batches import Running
from shared_model.encoding import Encoding, TokenBatch
from shared_model.engine import Engine
from shared_model.errors import JobError, Refused
from shared_model.releases.store import Release
from shared_model.settings import StateSettings
from shared_model.types import Precision
from tests.batch_job import family
from tests.batch_job.conftest import DAY, SMALL, attempt, data_files, held_files, message, planned, write_day
from tests.shared_model import small_release, tiny_builds

#: Eight shards, each with a text that it alone has.
LINES = [message(number, f"my card number {number} has not arrived") for number in range(190)]


def ids_of(state: StateSettings) -> list[str]:
    delta = DeltaTable(str(state.scores_table))
    return sorted(row["id"] for batch in table.read_files(delta, DAY, ["id"]) for row in batch.to_pylist())


def rows_of(state: StateSettings) -> dict[str, tuple[str, float]]:
    delta = DeltaTable(str(state.scores_table))
    batches = table.read_files(delta, DAY, ["id", "label", "score", "scored_at"])
    return {row.pop("id"): tuple(row.values()) for batch in batches for row in batch.to_pylist()}


def sidecars(state: StateSettings) -> set[Path]:
    return set(state.scores_table.glob("ds=*/**/*.json"))


def leave_shards(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    run: RunRecord,
    force: bool = False,
) -> None:
    """An attempt that fails when all is computed."""

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        attempt(spark, state, client, options, run, fail, force=force)


def test_an_attempt_that_fails_before_its_commit_leaves_all_its_shards(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions
) -> None:
    write_day(state, LINES)
    run = planned(state, client)

    leave_shards(spark, state, client, options, run)
    first, *others = sorted(sidecars(state))
    report = FileReport.from_json(first.read_text())
    damaged = state.scores_table / report.path
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    done = attempt(spark, state, client, options, run)
    assert done.units == 1 + len(others)
    assert done.units_resumed == len(others)
    assert sum(worker.rows for worker in done.workers) == report.rows
    assert len(ids_of(state)) == len(LINES)


def believed(note: str, target: Target) -> list[str]:
    """The reports of sidecars, without a look at their files."""
    return [Path(target.table, note).read_text()]


@pytest.mark.proof
def test_control_half_a_file_is_taken_over_by_whoever_believes_its_sidecar(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Truncated files, as a full disk would leave them if files were written in place."""
    write_day(state, LINES)
    run = planned(state, client)
    leave_shards(spark, state, client, options, run)
    report = FileReport.from_json(min(sidecars(state)).read_text())
    half = state.scores_table / report.path
    half.write_bytes(half.read_bytes()[: report.size // 2])
    monkeypatch.setattr(resumable, "_finished", believed)
    done = attempt(spark, state, client, options, run)
    assert (done.units_resumed, done.rows) == (done.units, len(LINES))
    with pytest.raises(JobError, match="is not as it was written"):
        ids_of(state)


def test_another_release_takes_nothing_over_and_replaces_the_day(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    release: Release,
    tmp_path: Path,
) -> None:
    """Though it computes the very same: neither shards that an attempt has left nor rows that stand are its own."""
    write_day(state, LINES[:60])
    run = planned(state, client)
    before = attempt(spark, state, client, options, run)
    leave_shards(spark, state, client, options, run, force=True)
    other = tiny_builds.resealed(release, tmp_path / "other", name="other")
    small_release.judge(other, passed=True)
    of_other = replace(options, releases_root=str(tmp_path / "other"), release=other.id)
    done = attempt(spark, state, client, of_other, replace(run, release=other.id))
    assert (done.units_resumed, done.rows_reused, done.rows) == (0, 0, 60)
    assert done.table_version == before.table_version + 1
    delta = DeltaTable(str(state.scores_table))
    found = [row for batch in table.read_files(delta, DAY, ["id", "release"]) for row in batch.to_pylist()]
    assert len({row["id"] for row in found}) == len(found) == 60
    assert {row["release"] for row in found} == {other.id}


def test_shards_taken_from_an_attempt_that_lives_and_commits_stay_whole(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The older attempt commits while the newer, which took its shards over, is about to: Redis could not tell it."""
    older, newer = of_two_the_older_commits_first(spark, state, client, options, monkeypatch)
    assert (newer.token, newer.units_resumed, newer.content) == (2, newer.units, older.content)
    assert len(ids_of(state)) == len(LINES)


def of_two_the_older_commits_first(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Scoring, Scoring]:
    write_day(state, LINES)
    run, computed, go = planned(state, client), threading.Event(), threading.Event()
    monkeypatch.setattr(Fence, "check", lambda fence: None)

    def wait() -> None:
        computed.set()
        assert go.wait(60)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(attempt, spark, state, client, options, run, wait)
        assert computed.wait(60)

        def let_go() -> None:
            go.set()
            first.result()

        second = attempt(spark, state, client, options, run, let_go)
        return first.result(), second


def test_late_data_reuses_what_is_scored_and_rewrites_the_partition(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions
) -> None:
    write_day(state, LINES)
    before = attempt(spark, state, client, options, planned(state, client))
    scored = rows_of(state)
    late = [message(500, "is my card lost?"), message(501, "my card number 7 has not arrived")]
    write_day(state, late, file="late.jsonl")
    done = attempt(spark, state, client, options, planned(state, client))
    assert (done.rows, done.rows_reused, done.distinct) == (len(LINES) + 2, len(LINES) + 1, 1)
    assert done.plan_id != before.plan_id
    assert data_files(state.scores_table) >= held_files(state.scores_table)
    found = rows_of(state)
    assert {each: row for each, row in found.items() if each in scored} == scored
    assert found["m00501"] == scored["m00007"]
    frame = read_scores(spark, state.scores_table, DAY)
    assert frame.count() == len(found)
    # And once more, from shards that hold both kinds.
    write_day(state, [message(502, "is my card lost?")], file="later.jsonl")
    assert attempt(spark, state, client, options, planned(state, client)).rows_reused == len(LINES) + 3
    assert rows_of(state)["m00502"] == found["m00500"]


def test_scores_of_another_precision_are_not_reused_nor_any_with_force(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions
) -> None:
    write_day(state, LINES[:30])
    run = planned(state, client)
    first = attempt(spark, state, client, options, run)
    forced = attempt(spark, state, client, options, run, force=True)
    assert (forced.rows_reused, forced.units_resumed, forced.content) == (0, 0, first.content)
    exact = attempt(spark, state, client, replace(options, int8=True), run)
    assert (exact.rows_reused, exact.precision) == (0, "int8")
    smaller = attempt(spark, state, client, options, run, settings=replace(SMALL, nightly_unit_rows=10))
    assert smaller.rows_reused == 0


class Compiled:
    """An engine as another CPU compiles it: one without BF16 makes FP32 of it."""

    def __init__(self, engine: Engine, precision: Precision) -> None:
        self._engine = engine
        self.precision = precision

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)


def write_with(
    engine_of: Callable[[models.Model], object],
    lines: Iterator[pa.RecordBatch],
    options: ScoringOptions,
    target: Target,
    shard_rows: int,
) -> Iterator[pa.RecordBatch]:
    """`score_shards` with another engine in place of the model's."""
    model = models.open_model(options, task_context.task_threads())
    changed = replace(model, engine=cast(Engine, engine_of(model)))
    with mock.patch.object(models, "open_model", return_value=changed):
        yield from shard_task.score_shards(lines, options, target, shard_rows)


def write_in(precision: Precision) -> Callable[..., Iterator[pa.RecordBatch]]:
    return partial(write_with, lambda model: Compiled(model.engine, precision))


def test_late_data_is_reused_by_the_precision_that_was_compiled_and_not_by_the_one_asked_for(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_day(state, LINES[:30])
    monkeypatch.setattr(shard_task, "score_shards", write_in(Precision.FP32))
    assert attempt(spark, state, client, options, planned(state, client)).precision == "fp32"
    write_day(state, [message(500, "is my card lost?")], file="late.jsonl")
    again = attempt(spark, state, client, options, planned(state, client))
    assert (again.precision, again.rows, again.rows_reused, again.distinct) == ("fp32", 31, 30, 1)
    # The next hosts have BF16, and a partition has one precision.
    monkeypatch.setattr(shard_task, "score_shards", write_in(Precision.BF16))
    write_day(state, [message(501, "is my card lost?")], file="later.jsonl")
    other = attempt(spark, state, client, options, planned(state, client))
    assert (other.precision, other.rows, other.rows_reused) == ("bf16", 32, 0)
    batches = table.read_files(DeltaTable(str(state.scores_table)), DAY, ["precision"])
    assert {row["precision"] for batch in batches for row in batch.to_pylist()} == {"bf16"}


def test_too_much_in_quarantine_fails_the_day_and_can_be_looked_at(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_day(state, [*LINES, b"", b"", b"no JSON"])
    run, strict = planned(state, client), replace(SMALL, quarantine_share=0.015)
    with pytest.raises(
        Refused,
        match=r"^[^\n]*: 3 of 193 lines are quarantined, more than 1.5%: empty 2, bad_json 1; [^\n]*"
        r"`python -m batch_job quarantine --ds 2026-01-14` prints them; TANDEM_QUARANTINE_SHARE=0.016 lets such a day",
    ):
        attempt(spark, state, client, options, run, settings=strict)
    _, shown = capsys.readouterr().err.split("quarantined, for example:\n")
    assert sorted(shown.splitlines()[:3]) == [
        "  bad_json  messages.jsonl  no JSON",
        *["  empty  messages.jsonl  "] * 2,
    ]
    assert table.last_attempt([state.scores_table], DAY) == -1
    assert sidecars(state) == set()
    assert table.quarantined(state.state / "quarantine", DAY, 1) == {"empty": 2, "bad_json": 1}
    assert attempt(spark, state, client, options, run, settings=replace(SMALL, quarantine_share=0.016)).rows == 190


POISON = "my card number 11 has not arrived"


class Frail:
    """An engine that one text is too much for."""

    def __init__(self, engine: Engine, poison: Encoding) -> None:
        self._engine = engine
        self._poison = poison.ids

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def start(self, batch: TokenBatch) -> Running:
        if any(np.array_equal(ids[mask == 1], self._poison) for ids, mask in zip(batch.ids, batch.mask, strict=True)):
            raise RuntimeError("poison")
        return self._engine.start(batch)


def test_poison_is_quarantined_and_stays_so_when_its_shard_is_taken_over(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_day(state, [*LINES, message(600, POISON), b""])
    run, options = planned(state, client), replace(options, poison=1)
    frail = partial(write_with, lambda model: Frail(model.engine, model.encoder.encode(POISON)))
    monkeypatch.setattr(shard_task, "score_shards", frail)
    leave_shards(spark, state, client, options, run)
    done = attempt(spark, state, client, options, run)
    assert (done.units_resumed, done.rows, done.quarantined) == (done.units, 189, {"empty": 1, "poison": 2})
    assert done.rows + sum(done.quarantined.values()) == run.input.lines
    assert "m00011" not in ids_of(state)
    quarantine = DeltaTable(str(state.state / "quarantine"))
    assert quarantine.version() == done.quarantine_version
    batches = table.read_files(quarantine, DAY, ["attempt", "reason", "raw"])
    of_attempt = [row for batch in batches for row in batch.to_pylist() if row["attempt"] == done.token]
    assert {(row["reason"], row["raw"]) for row in of_attempt} == {("empty", b""), ("poison", POISON.encode())}
    with pytest.raises(Refused, match="poison 2"):
        attempt(spark, state, client, options, run, settings=replace(SMALL, quarantine_share=0.01), force=True)


@contextmanager
def workers_write_at_most(size: int) -> Iterator[None]:
    """A full disk, as far as Spark's Python workers can tell."""
    pids = [each["pid"] for each in family.descendants() if "pyspark.daemon" in (each["cmdline"] or [])]
    before = [(pid, resource.prlimit(pid, resource.RLIMIT_FSIZE)) for pid in pids]
    try:
        for pid, (_, hard) in before:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
        yield
    finally:
        for pid, limits in before:
            if psutil.pid_exists(pid):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_one_line_and_what_fitted_is_kept(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions
) -> None:
    last = max(
        (f"is {number} my number?" for number in range(1000)), key=lambda it: hashlib.sha256(it.encode()).digest()
    )
    long_id = "".join(hashlib.sha256(str(number).encode()).hexdigest() for number in range(8_000))
    write_day(state, [*LINES, json.dumps({"id": long_id, "text": last}).encode()])
    run, settings = planned(state, client), replace(SMALL, nightly_task_rows=1000)
    # A first one, so that there are workers to limit.
    attempt(spark, state, client, options, run, settings=replace(settings, nightly_unit_rows=100))
    full = 100_000
    with (
        workers_write_at_most(full),
        pytest.raises(JobError, match=r"^[^\n]*could not be written: [^\n]*too large[^\n]*$"),
    ):
        attempt(spark, state, client, options, run, settings=settings, force=True)
    assert not list(state.scores_table.glob("ds=*/**/.*"))
    done = attempt(spark, state, client, options, run, settings=settings)
    assert done.units_resumed >= 3
    assert done.rows == len(LINES) + 1

"""The commit rule: one attempt's files or another's, never both, never an older one over a newer."""

import multiprocessing
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable
from pyspark.sql import SparkSession

from batch_job import read_scores
from batch_job.shards import schemas, shard_files
from batch_job.shards.shard_files import FileReport, Target, write_file
from batch_job.tables import resumable, table
from shared_model import objects
from shared_model.errors import JobError, Stale
from tests.shared_model.full_disk import largest_file

DAY = "2026-01-14"
DAYS = [f"2026-01-{day:02d}" for day in range(1, 31)]
#: Days the processes race for in every run of the suite; `make proof` takes all of them.
FEW_DAYS = 8
PROCESSES = 4


def score_file(folder: Path, token: int, ids: list[str], ds: str = DAY, source: str = schemas.ARCHIVE) -> FileReport:
    columns = {
        "id": ids,
        "text_hash": ["00"] * len(ids),
        "label": ["a"] * len(ids),
        "score": [0.5] * len(ids),
        "release": ["r-0123456789ab"] * len(ids),
        "precision": ["bf16"] * len(ids),
        "scored_at": [datetime.now(UTC)] * len(ids),
        "encoding_key": [f"{number:016d}".encode() for number in range(len(ids))],
        "tokens": [3] * len(ids),
        "truncated": [False] * len(ids),
        "top_k": [[{"label": "a", "score": 0.5}]] * len(ids),
        "vector": [None] * len(ids),
        "abstained": [None] * len(ids),
        "heads": [None] * len(ids),
    }
    batch = pa.RecordBatch.from_pydict(columns, schema=schemas.SCORES)
    return FileReport(*write_file(Target(str(folder), ds, "plan", token, source=source), schemas.SCORES, [batch]))


def nothing() -> None:
    """A check that always passes."""


def commit(folder: Path, token: int, ids: list[str], ds: str = DAY) -> int:
    return table.replace_partition(folder, ds, [score_file(folder, token, ids, ds)], token, nothing, {"run": "r"})


def ids_of(folder: Path, ds: str = DAY, source: str = "", delta: DeltaTable | None = None) -> list[str]:
    batches = table.read_files(delta or DeltaTable(str(folder)), ds, ["id"], source)
    return sorted(row["id"] for batch in batches for row in batch.to_pylist())


def test_a_newer_attempt_replaces_the_partition_and_no_other(tmp_path: Path) -> None:
    commit(tmp_path, 1, ["a", "b"])
    commit(tmp_path, 7, ["other"], "2026-01-15")
    version = commit(tmp_path, 2, ["c"])
    assert (ids_of(tmp_path), ids_of(tmp_path, "2026-01-15")) == (["c"], ["other"])
    found = table.committed(DeltaTable(str(tmp_path)), DAY)
    assert found == table.Committed(token=2, fingerprint="plan", table_version=version, rows=1)


@pytest.mark.parametrize("token", [4, 5])
def test_an_older_or_equal_attempt_is_stale(tmp_path: Path, token: int) -> None:
    version = commit(tmp_path, 5, ["a"])
    with pytest.raises(Stale, match=f"attempt 5 at ds=2026-01-14 is committed, this is attempt {token}"):
        commit(tmp_path, token, ["b"])
    assert (ids_of(tmp_path), DeltaTable(str(tmp_path)).version()) == (["a"], version)


def test_an_attempt_is_refused_on_the_snapshot_it_would_commit_on(tmp_path: Path) -> None:
    """A newer commit that lands after our check makes ours conflict; the next look then says stale."""
    commit(tmp_path, 1, ["a"])
    landed = []

    def overtake() -> None:
        if not landed:
            landed.append(commit(tmp_path, 9, ["newer"]))

    file = score_file(tmp_path, 5, ["older"])
    with pytest.raises(Stale, match="attempt 9"):
        table.replace_partition(tmp_path, DAY, [file], 5, overtake, {})
    assert ids_of(tmp_path) == ["newer"]


def test_a_log_that_cannot_be_written_says_why_in_one_line_and_has_nothing_of_it(tmp_path: Path) -> None:
    commit(tmp_path, 1, ["a"])
    file, log = score_file(tmp_path, 2, ["b"]), sorted((tmp_path / "_delta_log").iterdir())
    with largest_file(100), pytest.raises(JobError, match=r"^[^\n]*nothing committed: [^\n]*File too large[^\n]*$"):
        table.replace_partition(tmp_path, DAY, [file], 2, nothing, {})
    assert ids_of(tmp_path) == ["a"]
    assert sorted(path for path in (tmp_path / "_delta_log").iterdir() if path.suffix == ".json") == log
    table.replace_partition(tmp_path, DAY, [file], 2, nothing, {})
    assert ids_of(tmp_path) == ["b"]


def append(folder: Path, ids: list[str], meanwhile: Callable[[], object] = nothing) -> None:
    """Commit answers to deferred requests of these ids, but those that are there."""

    def write_new(delta: DeltaTable) -> FileReport | None:
        new = sorted(set(ids) - set(ids_of(folder, source=schemas.DEFERRED, delta=delta)))
        file = score_file(folder, 0, new, source=schemas.DEFERRED) if new else None
        meanwhile()
        return file

    table.add_deferred(folder, DAY, write_new)


def test_a_day_scored_again_leaves_its_deferred_rows(tmp_path: Path, spark: SparkSession) -> None:
    append(tmp_path, ["asked before"])
    commit(tmp_path, 1, ["replaced"])
    append(tmp_path, ["asked"])
    version = commit(tmp_path, 2, ["a", "b"])
    assert ids_of(tmp_path, source=schemas.ARCHIVE) == ["a", "b"]
    assert ids_of(tmp_path, source=schemas.DEFERRED) == ["asked", "asked before"]
    assert table.committed(DeltaTable(str(tmp_path)), DAY) == table.Committed(2, "plan", version, rows=2)
    found = {(row["id"], row["source"]) for row in read_scores(spark, tmp_path, DAY).collect()}
    assert found == {("a", "archive"), ("b", "archive"), ("asked", "deferred"), ("asked before", "deferred")}
    assert {row["id"] for row in read_scores(spark, tmp_path, source="archive").collect()} == {"a", "b"}


def test_of_two_drains_at_once_one_commits_an_id(tmp_path: Path) -> None:
    """Each checks on the snapshot it commits on: what landed in between makes it look again."""
    landed = iter([["both"]])

    def overtake() -> None:
        for ids in landed:
            append(tmp_path, ids)

    append(tmp_path, ["both", "only here"], overtake)
    assert ids_of(tmp_path, source=schemas.DEFERRED) == ["both", "only here"]


def test_a_table_of_an_earlier_version_is_refused_in_one_line(tmp_path: Path, spark: SparkSession) -> None:
    earlier = pa.schema([field for field in table.SCORES if field.name != "source"])
    table.open_table(tmp_path, earlier)
    for use in (
        lambda: commit(tmp_path, 1, ["a"]),
        lambda: append(tmp_path, ["a"]),
        lambda: table.committed(DeltaTable(str(tmp_path)), DAY),
        lambda: read_scores(spark, tmp_path),
    ):
        with pytest.raises(JobError, match="of an earlier version, without the column `source`; move it away and"):
            use()


def test_a_commit_of_another_day_is_no_staleness(tmp_path: Path) -> None:
    commit(tmp_path, 1, ["a"])
    landed = []

    def meanwhile() -> None:
        if not landed:
            landed.append(commit(tmp_path, 1, ["b"], "2026-01-15"))

    table.replace_partition(tmp_path, DAY, [score_file(tmp_path, 2, ["c"])], 2, meanwhile, {})
    assert (ids_of(tmp_path), ids_of(tmp_path, "2026-01-15")) == (["c"], ["b"])


def race(folder: Path, start: Barrier, process: int, days: int, naive: bool, environ: Mapping[str, str]) -> None:
    """Commit each of the first `days` days at the same moment as the other processes do."""
    # That of the server is from its first race.
    os.environ.update(environ)
    for number, ds in enumerate(DAYS[:days]):
        token = random.Random(number).sample(range(1, 100), PROCESSES)[process]
        ids = [f"{process}-{row}" for row in range(3)]
        file = score_file(folder, token, ids, ds)
        snapshot = DeltaTable(str(folder))
        start.wait()
        if naive:
            actions = table._actions({"ds": ds, "source": schemas.ARCHIVE}, [file])
            how = {"partition_by": ["ds", "source"], "partition_filters": [("ds", "=", ds)]}
            properties = CommitProperties(app_transactions=None)
            snapshot.create_write_transaction(actions, "overwrite", table.SCORES, commit_properties=properties, **how)
            continue
        try:
            table.replace_partition(folder, ds, [file], token, nothing, {})
        except Stale:
            continue
        resumable.sweep(Target(str(folder), ds, "plan", token), time.time())


def run_race(folder: Path, days: int, naive: bool) -> list[str]:
    """Days that ended up with the rows of more than one attempt."""
    table.open_table(folder, table.SCORES)
    context = multiprocessing.get_context("forkserver")
    # Importing this module takes a process as long as the race.
    context.set_forkserver_preload([__name__])
    start = context.Barrier(PROCESSES, timeout=60)
    racers = [
        context.Process(target=race, args=(folder, start, number, days, naive, dict(os.environ)))
        for number in range(PROCESSES)
    ]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(120)
    assert [racer.exitcode for racer in racers] == [0] * PROCESSES
    return [ds for ds in DAYS[:days] if len(ids_of(folder, ds)) != 3]


@pytest.mark.heavy
@pytest.mark.parametrize("days", [FEW_DAYS, pytest.param(len(DAYS), marks=pytest.mark.proof)])
def test_racing_processes_never_leave_two_attempts_in_a_day(tmp_path: Path, days: int) -> None:
    assert run_race(tmp_path, days, naive=False) == []
    delta = DeltaTable(str(tmp_path))
    for number, ds in enumerate(DAYS[:days]):
        tokens = random.Random(number).sample(range(1, 100), PROCESSES)
        assert delta.transaction_version(f"tandem/{ds}") == max(tokens)


@pytest.mark.proof
@pytest.mark.parametrize("days", [FEW_DAYS, len(DAYS)])
def test_control_without_the_rule_racing_processes_do(tmp_path: Path, days: int) -> None:
    assert run_race(tmp_path, days, naive=True) != []


def test_the_protocol_is_the_lowest_and_times_are_utc(tmp_path: Path) -> None:
    commit(tmp_path, 1, ["a"])
    protocol = DeltaTable(str(tmp_path)).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    batch = next(table.read_files(DeltaTable(str(tmp_path)), DAY, ["scored_at"]))
    assert batch.schema.field("scored_at").type == pa.timestamp("us", tz="UTC")


def test_control_a_time_without_a_zone_raises_the_protocol(tmp_path: Path) -> None:
    naive = pa.schema([("ds", pa.string()), ("scored_at", pa.timestamp("us"))])
    assert table.open_table(tmp_path, naive).protocol().min_reader_version == 3


def test_spark_reads_only_what_is_committed(tmp_path: Path, spark: SparkSession) -> None:
    commit(tmp_path, 1, ["replaced"])
    commit(tmp_path, 2, ["a", "b"])
    commit(tmp_path, 1, ["c"], "2026-01-15")
    score_file(tmp_path, 3, ["never committed"])
    assert sorted(row["id"] for row in read_scores(spark, tmp_path).collect()) == ["a", "b", "c"]
    of_day = read_scores(spark, tmp_path, DAY)
    assert sorted((row["id"], row["ds"]) for row in of_day.collect()) == [("a", DAY), ("b", DAY)]
    assert read_scores(spark, tmp_path, "2026-01-20").count() == 0
    # Control: what reading the folder would have shown.
    assert spark.read.parquet(str(tmp_path / f"ds={DAY}" / "source=archive")).count() == 4


def test_reading_needs_no_python_worker(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path, 1, ["a", "b"])
    # As in a reader's shell, whose `python3` has none of our packages.
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/bin/false")
    assert read_scores(spark, tmp_path, DAY).count() == 2


def test_a_table_of_newer_readers_is_refused_by_name(tmp_path: Path, spark: SparkSession) -> None:
    table.open_table(tmp_path, pa.schema([("ds", pa.string()), ("scored_at", pa.timestamp("us"))]))
    with pytest.raises(JobError, match=r"asks for reader version 3 \(features: .*timestampNtz"):
        read_scores(spark, tmp_path)


def test_a_folder_that_is_no_table_is_named(tmp_path: Path, spark: SparkSession) -> None:
    with pytest.raises(JobError, match="is no scores table"):
        read_scores(spark, tmp_path)


def test_two_makers_make_one_table(tmp_path: Path) -> None:
    for number in range(20):
        folder, start = tmp_path / str(number), threading.Barrier(2)

        def make(folder: Path = folder, start: threading.Barrier = start) -> int:
            start.wait()
            return int(table.open_table(folder, table.SCORES).version())

        with ThreadPoolExecutor(2) as pool:
            assert [each.result() for each in [pool.submit(make) for _ in range(2)]] == [0, 0]
        assert DeltaTable(str(folder)).version() == 0


def _with_spark(spark: SparkSession, folder: Path) -> list[str]:
    return sorted(map(str, read_scores(spark, folder).collect()))


def _without_spark(spark: SparkSession, folder: Path) -> list[str]:
    batches = table.read_files(DeltaTable(str(folder)), DAY, schemas.SCORES.names)
    return sorted(str(row) for batch in batches for row in batch.to_pylist())


Reader = Callable[[SparkSession, Path], list[str]]


def _read_after_mutations(read: Reader, spark: SparkSession, folder: Path, mutations: int) -> Counter[str]:
    """How reading a committed file went after each of so many changes of one byte: refused, harmless or wrong."""
    file = score_file(folder, 1, [f"{number:09d}" for number in range(2_000)])
    table.replace_partition(folder, DAY, [file], 1, nothing, {})
    path, rng, went = folder / file.path, random.Random(7), Counter[str]()
    whole, good = path.read_bytes(), read(spark, folder)
    for _ in range(mutations):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            went["harmless" if read(spark, folder) == good else "wrong"] += 1
        except Exception:  # noqa: BLE001 (whatever it is called, it is a refusal)
            went["refused"] += 1
    return went


@pytest.mark.parametrize(
    ("read", "mutations"),
    [(_without_spark, 200), (_with_spark, 10), pytest.param(_with_spark, 200, marks=pytest.mark.proof)],
)
def test_mutated_files_are_refused(tmp_path: Path, spark: SparkSession, read: Reader, mutations: int) -> None:
    assert _read_after_mutations(read, spark, tmp_path, mutations) == {"refused": mutations}


def test_files_that_another_tool_wrote_are_read_and_told_as_unchecked(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(day: str) -> list[str]:
        assert read_scores(spark, tmp_path, day).count() == 2
        return [line.partition("  ")[2] for line in capsys.readouterr().err.splitlines()]

    for day in (DAY, DAYS[0]):
        files = [score_file(tmp_path, 1, [name], day) for name in ("a", "b")]
        table.replace_partition(tmp_path, day, files, 1, nothing, {})
    assert told(DAY) == []
    DeltaTable(str(tmp_path)).optimize.compact([("ds", "=", DAY)])
    [line] = told(DAY)
    assert line.startswith("unchecked: 1 of 1 files of ")
    assert line.endswith("have no hash in their names: damage to them may go unnoticed")
    # Only those that are read count.
    assert told(DAYS[0]) == []


@pytest.mark.proof
def test_control_page_checksums_do_not_cover_headers_and_footer(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_files, "open_intact", objects.open_file)
    went = _read_after_mutations(_without_spark, spark, tmp_path, 200)
    assert went["refused"] > 120
    assert went["wrong"] > 0


@pytest.mark.proof
def test_control_without_any_checksum_they_are_read_as_other_rows(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_files, "open_intact", objects.open_file)

    def unchecked(*args: object, **options: object) -> pq.ParquetWriter:
        return pq_writer(*args, **{**options, "write_page_checksum": False})

    pq_writer = pq.ParquetWriter
    monkeypatch.setattr(pq, "ParquetWriter", unchecked)
    assert _read_after_mutations(_without_spark, spark, tmp_path, 20)["wrong"] > 5


def test_quarantined_lines_count_for_their_attempt_only(tmp_path: Path) -> None:
    for attempt, reasons in ((2, ["empty", "bad_json"]), (1, ["empty", "empty"])):
        target = Target(str(tmp_path), DAY, "plan", attempt, source="")
        columns = {
            "attempt": [attempt] * 2,
            "file": ["f"] * 2,
            "reason": reasons,
            "raw": [b"x"] * 2,
            "raw_bytes": [1] * 2,
        }
        batch = pa.RecordBatch.from_pydict(columns, schema=schemas.QUARANTINE)
        file = FileReport(*write_file(target, schemas.QUARANTINE, [batch]))
        table.add_quarantined(tmp_path, DAY, [file], attempt)
    assert table.quarantined(tmp_path, DAY, 1) == {"empty": 2}
    assert table.quarantined(tmp_path, DAY, 2) == {"empty": 1, "bad_json": 1}
    assert table.quarantined(tmp_path / "none", DAY, 2) == {}
    # A token that only quarantined lines carry is not free to be taken again.
    assert table.last_attempt([tmp_path, tmp_path / "none"], DAY) == 2
    assert table.last_attempt([tmp_path], "2026-01-15") == -1

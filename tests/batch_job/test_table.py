"""The commit rule: one attempt's files or another's, never both, never an older one over a newer."""

import multiprocessing
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable
from pyspark.sql import SparkSession

from batch_job import read_scores, rows, table
from batch_job.writing import FileReport, Target, write_file
from shared_model.errors import JobError, Stale

DAY = "2026-01-14"
DAYS = [f"2026-01-{day:02d}" for day in range(1, 31)]
#: Days the processes race for in every run of the suite; `make proof` takes all of them.
FEW_DAYS = 8
PROCESSES = 4


def score_file(folder: Path, token: int, ids: list[str], ds: str = DAY) -> FileReport:
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
    }
    batch = pa.RecordBatch.from_pydict(columns, schema=rows.SCORES)
    return FileReport(*write_file(Target(str(folder), ds, "plan", token), rows.SCORES, [batch]))


def nothing() -> None:
    """A check that always passes."""


def commit(folder: Path, token: int, ids: list[str], ds: str = DAY) -> int:
    return table.replace_partition(folder, ds, [score_file(folder, token, ids, ds)], token, nothing, {"run": "r"})


def ids_of(folder: Path, ds: str = DAY) -> list[str]:
    found = [row["id"] for batch in table.read_files(DeltaTable(str(folder)), ds, ["id"]) for row in batch.to_pylist()]
    return sorted(found)


def test_a_newer_attempt_replaces_the_partition_and_no_other(tmp_path: Path) -> None:
    commit(tmp_path, 1, ["a", "b"])
    commit(tmp_path, 7, ["other"], "2026-01-15")
    version = commit(tmp_path, 2, ["c"])
    assert (ids_of(tmp_path), ids_of(tmp_path, "2026-01-15")) == (["c"], ["other"])
    found = table.committed(DeltaTable(str(tmp_path)), DAY)
    assert found == table.Committed(token=2, plan_id="plan", table_version=version, rows=1)


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


def test_a_commit_of_another_day_is_no_staleness(tmp_path: Path) -> None:
    commit(tmp_path, 1, ["a"])
    landed = []

    def meanwhile() -> None:
        if not landed:
            landed.append(commit(tmp_path, 1, ["b"], "2026-01-15"))

    table.replace_partition(tmp_path, DAY, [score_file(tmp_path, 2, ["c"])], 2, meanwhile, {})
    assert (ids_of(tmp_path), ids_of(tmp_path, "2026-01-15")) == (["c"], ["b"])


def race(folder: Path, start: Barrier, process: int, days: int, naive: bool) -> None:
    """Commit each of the first `days` days at the same moment as the other processes do."""
    for number, ds in enumerate(DAYS[:days]):
        token = random.Random(number).sample(range(1, 100), PROCESSES)[process]
        ids = [f"{process}-{row}" for row in range(3)]
        file = score_file(folder, token, ids, ds)
        snapshot = DeltaTable(str(folder))
        start.wait()
        if naive:
            actions = table._actions(ds, [file])
            how = {"partition_by": ["ds"], "partition_filters": [("ds", "=", ds)]}
            properties = CommitProperties(app_transactions=None)
            snapshot.create_write_transaction(actions, "overwrite", table.SCORES, commit_properties=properties, **how)
            continue
        try:
            table.replace_partition(folder, ds, [file], token, nothing, {})
        except Stale:
            table.remove_litter(Target(str(folder), ds, "plan", token))


def run_race(folder: Path, days: int, naive: bool) -> list[str]:
    """Days that ended up with the rows of more than one attempt."""
    table.open_table(folder, table.SCORES)
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(PROCESSES, timeout=60)
    racers = [context.Process(target=race, args=(folder, start, number, days, naive)) for number in range(PROCESSES)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(120)
    assert [racer.exitcode for racer in racers] == [0] * PROCESSES
    return [ds for ds in DAYS[:days] if len(ids_of(folder, ds)) != 3]


@pytest.mark.parametrize("days", [FEW_DAYS, pytest.param(len(DAYS), marks=pytest.mark.proof)])
def test_racing_processes_never_leave_two_attempts_in_a_day(tmp_path: Path, days: int) -> None:
    assert run_race(tmp_path, days, naive=False) == []
    delta = DeltaTable(str(tmp_path))
    for number, ds in enumerate(DAYS[:days]):
        tokens = random.Random(number).sample(range(1, 100), PROCESSES)
        assert delta.transaction_version(f"tandem/{ds}") == max(tokens)


def test_control_without_the_rule_racing_processes_do(tmp_path: Path) -> None:
    assert run_race(tmp_path, FEW_DAYS, naive=True) != []


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
    assert spark.read.parquet(str(tmp_path / f"ds={DAY}")).count() == 4


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


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(bytes(data))


def _with_spark(spark: SparkSession, folder: Path) -> object:
    return read_scores(spark, folder).collect()


def _without_spark(spark: SparkSession, folder: Path) -> object:
    return list(table.read_files(DeltaTable(str(folder)), DAY, rows.SCORES.names))


@pytest.mark.parametrize("reader", [_with_spark, _without_spark])
def test_a_flipped_bit_is_noticed(
    tmp_path: Path, spark: SparkSession, reader: Callable[[SparkSession, Path], object]
) -> None:
    file = score_file(tmp_path, 1, [f"{number:09d}" for number in range(5_000)])
    table.replace_partition(tmp_path, DAY, [file], 1, nothing, {})
    reader(spark, tmp_path)
    _flip(tmp_path / file.path, 400)
    with pytest.raises(Exception, match=r"(?i)crc|checksum|corrupt"):
        reader(spark, tmp_path)


def test_quarantined_lines_count_for_their_attempt_only(tmp_path: Path) -> None:
    for attempt, reasons in ((2, ["empty", "bad_json"]), (1, ["empty", "empty"])):
        target = Target(str(tmp_path), DAY, "plan", attempt)
        columns = {
            "attempt": [attempt] * 2,
            "file": ["f"] * 2,
            "reason": reasons,
            "raw": [b"x"] * 2,
            "raw_bytes": [1] * 2,
        }
        batch = pa.RecordBatch.from_pydict(columns, schema=rows.QUARANTINE)
        file = FileReport(*write_file(target, rows.QUARANTINE, [batch]))
        table.add_quarantined(tmp_path, DAY, [file], attempt)
    assert table.quarantined(tmp_path, DAY, 1) == {"empty": 2}
    assert table.quarantined(tmp_path, DAY, 2) == {"empty": 1, "bad_json": 1}
    assert table.quarantined(tmp_path / "none", DAY, 2) == {}
    # A token that only quarantined lines carry is not free to be taken again.
    assert table.last_attempt([tmp_path, tmp_path / "none"], DAY) == 2
    assert table.last_attempt([tmp_path], "2026-01-15") == -1


def test_litter_is_what_the_table_does_not_hold(tmp_path: Path) -> None:
    target = Target(str(tmp_path), DAY, "plan", 1)
    batch = pa.RecordBatch.from_pylist([], schema=rows.SCORES)
    held, litter = (FileReport(*write_file(target, rows.SCORES, [batch])) for _ in range(2))
    another_driver = score_file(tmp_path, 1, ["a"])
    table.replace_partition(tmp_path, DAY, [held], 1, nothing, {})
    table.remove_litter(target)
    left = {path.name for path in (tmp_path / f"ds={DAY}").iterdir()}
    assert left == {Path(held.path).name, Path(another_driver.path).name}
    assert Path(litter.path).name not in left

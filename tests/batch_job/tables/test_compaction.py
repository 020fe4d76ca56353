"""Compaction of older days: fewer files of the same rows and facts, and readers that go on."""

import json
import os
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable

from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport, Target, write_file
from batch_job.tables import compaction, resumable, table
from batch_job.tables.compaction import Figures, compact
from batch_job.tables.staged import Staged
from shared_model.errors import JobError
from shared_model.objects import open_objects
from tests.batch_job.tables.test_table import DAY, append, commit, ids_of, nothing, score_file

NEXT_DAY = "2026-01-15"
FACTS = {
    "tandem.ds": DAY,
    "tandem.attempt": "4",
    "tandem.content": "c",
    "tandem.approved_by": "ada",
    table.INPUT: "mine",
}


def commit_shards(folder: Path, ids: str, ds: str = DAY, token: int = 4) -> list[FileReport]:
    """A day of one file for each id."""
    files = [score_file(folder, token, [name], ds) for name in ids]
    table.replace_partition(folder, ds, files, token, nothing, {**FACTS, "tandem.ds": ds})
    return files


def paths(folder: Path | str) -> set[str]:
    return {it.path for it in open_objects(folder).list() if it.path.endswith(".parquet")}


def forget_recent(folder: Path) -> None:
    """Have all that is not named any longer be as old as files that are deleted."""
    long_ago = time.time() - 2 * resumable.KEEP_SECONDS
    for path in folder.rglob("*"):
        os.utime(path, (long_ago, long_ago))
    for version in (folder / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in version.read_text().splitlines()]
        for action in actions:
            if removed := action.get("remove"):
                removed["deletionTimestamp"] = int(long_ago * 1000)
        version.write_text("\n".join(map(json.dumps, actions)) + "\n")


def test_an_older_day_is_one_file_of_the_same_rows_attempt_and_facts(tmp_path: Path) -> None:
    commit_shards(tmp_path, "abc")
    commit_shards(tmp_path, "de", NEXT_DAY)
    before = table.committed(DeltaTable(str(tmp_path)), DAY)
    assert before
    assert compact(tmp_path, NEXT_DAY) == Figures(days=1, before=3, after=1)
    found = DeltaTable(str(tmp_path))
    assert (ids_of(tmp_path), ids_of(tmp_path, NEXT_DAY)) == (["a", "b", "c"], ["d", "e"])
    after = table.committed(found, DAY)
    assert after == table.Committed(before.token, before.fingerprint, found.version(), before.rows)
    [uri] = found.file_uris(file_pruning_predicate=table.partition_filter(DAY, schemas.ARCHIVE))
    with pq.ParquetFile(uri) as file:
        assert file.metadata.num_rows == 3
    # A second time there is nothing to do.
    assert compact(tmp_path, NEXT_DAY) == Figures()


def test_facts_outlive_the_commit_that_stated_them_first(tmp_path: Path) -> None:
    commit_shards(tmp_path, "abc")
    compact(tmp_path, NEXT_DAY)
    found = DeltaTable(str(tmp_path))
    found.create_checkpoint()
    # As the log forgets its oldest commits.
    for version in sorted((tmp_path / "_delta_log").glob("*.json"))[:-1]:
        version.unlink()
    found = DeltaTable(str(tmp_path))
    assert FACTS.items() <= table.commit_facts(found, DAY, 4).items()
    assert table.inputs(found) == {DAY: "mine"}


def test_a_merged_day_is_scored_again_and_an_older_attempt_stays_stale(tmp_path: Path) -> None:
    commit_shards(tmp_path, "abc")
    compact(tmp_path, NEXT_DAY)
    assert table.last_attempt([tmp_path], DAY) == 4
    commit(tmp_path, 5, ["new"])
    assert ids_of(tmp_path) == ["new"]


def test_a_reader_of_the_version_before_goes_on(tmp_path: Path) -> None:
    commit_shards(tmp_path, "abc")
    reader = DeltaTable(str(tmp_path))
    compact(tmp_path, NEXT_DAY)
    assert ids_of(tmp_path, delta=reader) == ["a", "b", "c"]
    assert len(DeltaTable(str(tmp_path)).file_uris()) == 1


def test_readers_of_changes_are_told_that_no_row_has_changed(tmp_path: Path) -> None:
    commit_shards(tmp_path, "ab")
    compact(tmp_path, NEXT_DAY)
    [*_, last] = sorted((tmp_path / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in last.read_text().splitlines()]
    assert [it[kind]["dataChange"] for it in actions for kind in ("add", "remove") if kind in it] == [False] * 3


def test_answers_of_deferred_requests_are_merged_apart_and_stay_as_old(tmp_path: Path) -> None:
    commit_shards(tmp_path, "ab")
    for name in ("asked", "asked too"):
        append(tmp_path, [name])
    since = int(time.time() * 1000) + 1
    assert compact(tmp_path, NEXT_DAY) == Figures(days=1, before=4, after=2)
    assert ids_of(tmp_path, source=schemas.DEFERRED) == ["asked", "asked too"]
    found = DeltaTable(str(tmp_path))
    assert list(table.read_recent(found, since, ["id"], schemas.DEFERRED)) == []
    assert len(list(table.read_recent(found, 0, ["id"], schemas.DEFERRED))) == 1


def test_a_day_that_is_scored_again_meanwhile_is_left_to_its_new_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_shards(tmp_path, "abc")
    landed, facts = list[int](), compaction._facts

    def overtake(found: DeltaTable, ds: str) -> dict[str, str]:
        """Between the look at the table and the commit."""
        if not landed:
            landed.append(commit(tmp_path, 9, ["newer"]))
        return facts(found, ds)

    monkeypatch.setattr(compaction, "_facts", overtake)
    before = paths(tmp_path)
    assert compact(tmp_path, NEXT_DAY) == Figures()
    assert ids_of(tmp_path) == ["newer"]
    # The file that it had written is gone.
    assert len(paths(tmp_path) - before) == 1


def test_a_commit_of_another_day_meanwhile_is_no_reason_to_leave_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_shards(tmp_path, "abc")
    landed, facts = list[int](), compaction._facts

    def meanwhile(found: DeltaTable, ds: str) -> dict[str, str]:
        if not landed:
            landed.append(commit(tmp_path, 1, ["x"], NEXT_DAY))
        return facts(found, ds)

    monkeypatch.setattr(compaction, "_facts", meanwhile)
    assert compact(tmp_path, NEXT_DAY) == Figures(days=1, before=3, after=1)
    assert (ids_of(tmp_path), ids_of(tmp_path, NEXT_DAY)) == (["a", "b", "c"], ["x"])


def test_quarantined_lines_keep_their_attempts(tmp_path: Path) -> None:
    """A run that is unchanged takes its counts from this table."""
    for attempt, reasons in ((2, ["empty", "bad_json"]), (1, ["empty", "empty"])):
        columns = {
            "attempt": [attempt] * 2,
            "file": ["f"] * 2,
            "reason": reasons,
            "raw": [b"x"] * 2,
            "raw_bytes": [1] * 2,
        }
        batch = pa.RecordBatch.from_pydict(columns, schema=schemas.QUARANTINE)
        target = Target(str(tmp_path), DAY, "plan", attempt, source="")
        file = FileReport(*write_file(target, schemas.QUARANTINE, [batch]))
        table.add_quarantined(tmp_path, DAY, [file], attempt)
    assert compact(tmp_path, NEXT_DAY) == Figures(days=1, before=2, after=1)
    assert table.quarantined(tmp_path, DAY, 1) == {"empty": 2}
    assert table.quarantined(tmp_path, DAY, 2) == {"empty": 1, "bad_json": 1}
    assert table.last_attempt([tmp_path], DAY) == 2


def test_files_are_deleted_once_nothing_has_needed_them_for_a_week(tmp_path: Path) -> None:
    shards, orphan = commit_shards(tmp_path, "abc"), score_file(tmp_path, 5, ["never committed"])
    compact(tmp_path, NEXT_DAY)
    assert {it.path for it in (*shards, orphan)} < paths(tmp_path)
    forget_recent(tmp_path)
    waiting = score_file(tmp_path, 6, ["waits for a person"])
    Staged(Target(str(tmp_path), DAY, "plan", 6), (waiting,), {}, None, {}, {}, 1).write()
    os.utime(tmp_path / waiting.path, (1, 1))
    freed = sum(it.size for it in (*shards, orphan))
    assert compact(tmp_path, NEXT_DAY) == Figures(deleted=4, freed=freed)
    assert ids_of(tmp_path) == ["a", "b", "c"]
    assert len(paths(tmp_path)) == 2
    assert waiting.path in paths(tmp_path)


def test_files_stay_longer_where_that_is_asked_and_never_less_than_a_week(tmp_path: Path) -> None:
    commit_shards(tmp_path, "abc")
    compact(tmp_path, NEXT_DAY, keep=timedelta(0))
    assert len(paths(tmp_path)) == 4
    forget_recent(tmp_path)
    assert compact(tmp_path, NEXT_DAY, keep=timedelta(days=30)).deleted == 0
    assert compact(tmp_path, NEXT_DAY).deleted == 3


@pytest.mark.parametrize("most", [1, 2 * 5971.0])
def test_large_files_stay(tmp_path: Path, most: float) -> None:
    files = commit_shards(tmp_path, "abcd")
    held = {it.path for it in files}
    figures = compact(tmp_path, NEXT_DAY, most_bytes=most)
    assert figures.before == (0 if most == 1 else 4)
    assert (held == {uri[len(f"{tmp_path}/") :] for uri in DeltaTable(str(tmp_path)).file_uris()}) == (most == 1)


def test_files_of_other_tools_stay(tmp_path: Path) -> None:
    """Their names have no hash, and one of ours would vouch for whatever they hold."""
    files = list[FileReport]()
    for number, name in enumerate("ab"):
        written = score_file(tmp_path, 4, [name])
        files.append(replace(written, path=f"ds={DAY}/source=archive/part-{number}.zstd.parquet"))
        (tmp_path / written.path).rename(tmp_path / files[-1].path)
    table.replace_partition(tmp_path, DAY, files, 4, nothing, FACTS)
    assert compact(tmp_path, NEXT_DAY) == Figures()


def test_a_damaged_file_is_named_and_its_day_stays(tmp_path: Path) -> None:
    files = commit_shards(tmp_path, "abc")
    with open(tmp_path / files[1].path, "r+b") as file:
        file.seek(30)
        file.write(b"damaged")
    version = DeltaTable(str(tmp_path)).version()
    with pytest.raises(JobError, match=f"{files[1].name} cannot be read: it is not as it was written; score ds={DAY}"):
        compact(tmp_path, NEXT_DAY)
    assert DeltaTable(str(tmp_path)).version() == version


def test_a_table_without_the_columns_of_this_version_is_not_merged(tmp_path: Path) -> None:
    earlier = pa.schema([field for field in table.SCORES if field.name != "heads"])
    found = table.open_table(tmp_path, earlier)
    for number in range(2):
        file = score_file(tmp_path, number, ["a"])
        actions = table._actions({"ds": DAY, "source": schemas.ARCHIVE}, [file])
        properties = CommitProperties(max_commit_retries=0)
        found.create_write_transaction(actions, "append", earlier, ["ds", "source"], commit_properties=properties)
        found = DeltaTable(str(tmp_path))
    assert compact(tmp_path, NEXT_DAY) == Figures()


def test_without_a_table_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert compact(tmp_path / "none", NEXT_DAY) == Figures()


def test_behind_a_url(s3_url: str) -> None:
    commit_shards(s3_url, "abc")  # type: ignore[arg-type]
    assert compact(s3_url, NEXT_DAY) == Figures(days=1, before=3, after=1)
    assert ids_of(s3_url) == ["a", "b", "c"]  # type: ignore[arg-type]
    assert len(DeltaTable(s3_url).file_uris()) == 1
    assert len(paths(s3_url)) == 4

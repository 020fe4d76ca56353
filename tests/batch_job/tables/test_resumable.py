"""Shards of an earlier attempt that are adopted, and files that are deleted."""

import json
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from batch_job.shards import schemas, shard_files
from batch_job.shards.binning import Bin, Load
from batch_job.shards.shard_files import FileReport, Target
from batch_job.tables import resumable, staged, table
from batch_job.tables.staged import Staged
from shared_model.errors import JobError
from tests.shared_model.full_disk import largest_file

DAY = "2026-01-14"
NOW = time.time()


def write(target: Target, bin_number: int = 0, part: int = 0) -> FileReport:
    """A finished shard of no rows, from a driver of its own."""
    target = replace(target, driver=uuid.uuid4().hex[:8])
    written = shard_files.write_file(target, schemas.SCORES, [], shard_files.shard_name(bin_number, part))
    report = FileReport(*written, fingerprint=target.fingerprint, bin_number=bin_number, part=part)
    shard_files.write_sidecar(target, report)
    return report


def commit(target: Target, *files: FileReport) -> None:
    table.replace_partition(Path(target.table), target.ds, files, target.token, lambda: None, {})


def age(target: Target, modified: float) -> None:
    for path in Path(target.table, target.folder).iterdir():
        os.utime(path, (modified, modified))


def files_of(target: Target) -> set[str]:
    return {path.name for path in Path(target.table, target.folder).glob("*.parquet")}


def names(*reports: FileReport) -> set[str]:
    return {Path(report.path).name for report in reports}


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(str(tmp_path), DAY, "plan", token=3)


def test_a_sidecar_of_an_earlier_version_is_read(target: Target) -> None:
    """Earlier versions counted the labels in it."""
    written = write(target)
    note = Path(target.table, shard_files.sidecar(written.path))
    note.write_text(note.read_text().replace('"fingerprint"', '"labels": {"yes": 1}, "fingerprint"'))
    assert shard_files.finished(shard_files.sidecar(written.path), target) == written


def flipped(file: Path, note: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def shortened(file: Path, note: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def gone(file: Path, note: Path) -> None:
    file.unlink()


def of_another_plan(file: Path, note: Path) -> None:
    note.write_text(note.read_text().replace('"fingerprint": "plan"', '"fingerprint": "other"'))


def half_a_note(file: Path, note: Path) -> None:
    note.write_text(note.read_text()[:40])


def of_another_version(file: Path, note: Path) -> None:
    note.write_text(note.read_text().replace('"content"', '"contents"'))


@pytest.mark.parametrize("damage", [flipped, shortened, gone, of_another_plan, half_a_note, of_another_version])
def test_only_what_is_as_it_was_left_counts(target: Target, damage: Callable[[Path, Path], None]) -> None:
    report = write(target)
    note = shard_files.sidecar(report.path)
    assert shard_files.finished(note, target) == report
    damage(Path(target.table, report.path), Path(target.table, note))
    assert shard_files.finished(note, target) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 5)), max_size=20))
def test_a_bin_is_taken_over_whole_and_each_shard_once(written: list[tuple[int, int, int]]) -> None:
    rows_of = {(bin_number, part): count for bin_number, part, count in written}
    # Shards that were written twice, by speculation or by two attempts, hold the same rows.
    reports = [
        FileReport(f"file {place}", 1, rows_of[bin_number, part], bin_number=bin_number, part=part)
        for place, (bin_number, part, _) in enumerate(written)
    ]
    bins = [Bin(number, (number,), Load(rows=6, work=6)) for number in range(4)]
    taken = list(resumable.of_whole_bins(reports, bins))
    for bin_ in bins:
        there = sum(count for (number, _), count in rows_of.items() if number == bin_.number)
        parts = [report.part for report in taken if report.bin_number == bin_.number]
        assert len(set(parts)) == len(parts)
        assert sum(rows_of[bin_.number, part] for part in parts) == (6 if there == 6 else 0)


def test_an_adopted_shard_outlives_a_commit_in_between(target: Target) -> None:
    older, newer = replace(target, token=2, driver="0000abcd"), replace(target, token=4, driver="1111abcd")
    adopted = write(older)
    # An attempt in between commits and cleans up, because Redis lost the newest token.
    commit(target, write(target))
    resumable.sweep(target, NOW)
    commit(newer, adopted)
    resumable.sweep(newer, NOW + 100 * resumable.KEEP_SECONDS)
    assert names(adopted) <= files_of(target)
    assert list(table.read_files(DeltaTable(target.table), DAY, ["id"])) == []


def test_an_adopted_shard_that_its_writer_commits_meanwhile_is_copied(target: Target) -> None:
    """One commit that removed and added the same file would mean the one to some readers, the other to others."""
    shard = write(target)
    commit(target, shard, write(target))
    newer = replace(target, token=4)
    commit(newer, shard)
    delta = DeltaTable(target.table)
    log = Path(target.table, "_delta_log", f"{delta.version():020d}.json").read_text()
    actions = [json.loads(line) for line in log.splitlines()]
    added, removed = ({it[kind]["path"] for it in actions if kind in it} for kind in ("add", "remove"))
    assert (len(added), len(removed)) == (1, 2)
    assert not added & removed
    assert {Path(path).read_bytes() for path in delta.file_uris()} == {Path(target.table, shard.path).read_bytes()}


def test_a_commit_takes_away_the_sidecars_and_parts_that_it_and_older_attempts_left(target: Target) -> None:
    """Not their shards, which a newer attempt may have adopted, nor what a newer attempt or another day left."""
    older, newer = replace(target, token=2, fingerprint="other"), replace(target, token=4)
    next_day = replace(target, ds="2026-01-15")
    left = [write(each) for each in (older, target)]
    unfinished = Path(target.table, left[0].path)
    # A data file, and a sidecar and a tally as `atomic_write` names them.
    for name in (
        f"{unfinished.name}.part",
        f"{unfinished.stem}.json.0123abcd.part",
        f"{unfinished.stem}.part.89ab0123.part",
    ):
        unfinished.with_name(f".{name}").touch()
    kept = write(target)
    theirs, next_days = write(newer), write(next_day)
    commit(target, kept)
    resumable.sweep(target, NOW)
    there = {path.name for path in Path(target.table, target.folder).iterdir()}
    assert there == names(kept, theirs, *left) | {name.replace(".parquet", ".json") for name in names(theirs)}
    assert files_of(next_day) == names(next_days)
    # Control: whatever it is, it does not stay for ever.
    resumable.sweep(target, NOW + 100 * resumable.KEEP_SECONDS)
    assert files_of(target) == names(kept)
    assert files_of(next_day) == set()


def test_shards_that_wait_for_a_person_outlive_other_days_commits(target: Target) -> None:
    shard, other = write(target), replace(target, ds="2026-01-16", token=1)
    path = Staged(target, (shard,), {}, None, {}, {}, 1).write()
    commit(other, write(other))
    age(target, NOW - 2 * resumable.KEEP_SECONDS)
    age_list = Path(target.table, path)
    os.utime(age_list, (NOW, NOW))
    resumable.sweep(other, NOW)
    assert files_of(target) == names(shard)
    staged.read(target.table, path).check_there()
    # No decision came for as long as any shard is kept.
    resumable.sweep(other, NOW + 2 * resumable.KEEP_SECONDS)
    assert files_of(target) == set()
    assert not age_list.exists()


def test_a_commit_of_the_day_takes_older_lists_away_and_leaves_newer_ones(target: Target) -> None:
    older, newer = (
        Path(target.table, Staged(replace(target, token=token), (), {}, None, {}, {}, 1).write()) for token in (2, 4)
    )
    newer.write_text("damaged")
    commit(target, write(target))
    resumable.sweep(target, NOW)
    assert (older.exists(), newer.exists()) == (False, True)


def test_what_an_older_version_holds_stays(target: Target) -> None:
    first = write(target)
    commit(target, first)
    later = replace(target, token=4)
    second = write(later)
    commit(later, second)
    resumable.sweep(later, NOW + 100 * resumable.KEEP_SECONDS)
    assert files_of(target) == names(first, second)
    before = DeltaTable(target.table, version=DeltaTable(target.table).version() - 1)
    assert list(table.read_files(before, DAY, ["id"])) == []


def test_what_a_forgotten_version_may_hold_stays(target: Target) -> None:
    """Delta cleans its log up; whether old files were ever held is then not known."""
    first = write(target)
    commit(target, first)
    os.utime(Path(target.table, first.path), (1, 1))
    later = replace(target, token=4)
    commit(later, write(later))
    DeltaTable(target.table).create_checkpoint()
    for version in sorted(Path(target.table, "_delta_log").glob("*.json"))[:2]:
        version.unlink()
    newest = replace(target, token=5)
    stray, kept = write(newest), write(newest)
    commit(newest, kept)
    resumable.sweep(newest, NOW + 2 * resumable.KEEP_SECONDS)
    assert names(first, kept) <= files_of(target)
    assert not names(stray) & files_of(target)


def test_files_that_are_not_ours_are_left_alone(target: Target) -> None:
    folder = Path(target.table, target.folder)
    commit(target, write(target))
    for name in ("notes.txt", "part-00000.parquet", "_SUCCESS"):
        (folder / name).touch()
    resumable.sweep(target, NOW + 100 * resumable.KEEP_SECONDS)
    assert {"notes.txt", "part-00000.parquet", "_SUCCESS"} <= {path.name for path in folder.iterdir()}


def test_a_file_that_does_not_fit_leaves_nothing_but_one_line(target: Target) -> None:
    with largest_file(500), pytest.raises(JobError, match=r"^[^\n]*plan\.00000-0\.3\.[^\n]* could not be written"):
        write(target)
    assert list(Path(target.table, target.folder).iterdir()) == []


def test_a_commit_that_does_not_fit_is_one_line_and_no_commit(target: Target) -> None:
    report = write(target)
    table.open_table(Path(target.table), table.SCORES)
    with largest_file(100), pytest.raises(JobError, match=r"^[^\n]*: nothing committed: [^\n]*$"):
        commit(target, report)
    assert DeltaTable(target.table).version() == 0
    commit(target, report)
    assert table.committed(DeltaTable(target.table), DAY) is not None


def test_an_attempt_takes_its_own_temporary_files_away(target: Target) -> None:
    other = replace(target, driver="0000abcd")
    for each in (target, other):
        Path(each.table, each.folder).mkdir(parents=True, exist_ok=True)
        for name in ("-0123.part", "-0.part", "-0.part.0123abcd.part"):
            Path(each.table, each.folder, f".{each.stem('00000-0')}{name}").touch()
    resumable.remove_temporary(target)
    left = [path.name for path in Path(target.table, target.folder).iterdir()]
    assert len(left) == 3
    assert all("0000abcd" in name for name in left)

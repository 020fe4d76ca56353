"""Planning pins the release and the input; what is missing or has changed is named."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from batch_job import planning
from shared_model.encoding import Reads
from shared_model.errors import JobError
from shared_model.output import Output, OutputKind
from shared_model.releases import pointer
from shared_model.releases.manifest import Facts
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, message, planned, write_day


def test_a_plan_pins_release_and_input(state: StateSettings, client: "redis.Redis", release: Release) -> None:
    write_day(state, [message(0, "hello"), b"", message(1, "again")])
    run = planned(state, client)
    assert (run.release, run.input.lines) == (release.id, 3)
    assert run.input.paths == [str(state.messages_dir / f"ds={DAY}" / "messages.jsonl")]


def test_a_missing_partition_is_named(state: StateSettings, client: "redis.Redis") -> None:
    with pytest.raises(JobError, match=r"no messages: .*ds=2026-01-14 is not a folder"):
        planned(state, client)
    (state.messages_dir / f"ds={DAY}").mkdir(parents=True)
    with pytest.raises(JobError, match=r"ds=2026-01-14 holds no \.jsonl or \.jsonl\.gz file"):
        planned(state, client)


@pytest.mark.parametrize("ds", ["None", "2026-1-4", "2026-02-30", "../etc", "20260114"])
def test_what_is_no_day_is_refused(ds: str) -> None:
    with pytest.raises(JobError, match="expected a day as YYYY-MM-DD"):
        planning.check_day(ds)


@pytest.mark.parametrize(("content", "lines"), [(b"", 0), (b"a", 1), (b"a\n", 1), (b"a\n\nb", 3), (b"\n\n", 2)])
def test_lines_are_counted_as_spark_reads_them(tmp_path: Path, content: bytes, lines: int) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(content))
    (tmp_path / ".part.jsonl").write_bytes(b"unfinished\n")
    (tmp_path / "_old.jsonl").write_bytes(b"hidden\n")
    assert [file.lines for file in planning.read_input(tmp_path).files] == [lines, lines]


def test_the_fingerprint_follows_names_and_bytes(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"one\n")
    first = planning.read_input(tmp_path).fingerprint
    assert planning.read_input(tmp_path).fingerprint == first
    file.write_bytes(b"two\n")
    changed = planning.read_input(tmp_path).fingerprint
    file.rename(tmp_path / "b.jsonl")
    assert len({first, changed, planning.read_input(tmp_path).fingerprint}) == 3


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"x" * 10_000)[:-20])
    with pytest.raises(JobError, match=r"a\.jsonl\.gz cannot be read"):
        planning.read_input(tmp_path)


def test_input_that_changed_since_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"one\n")
    planned_input = planning.read_input(tmp_path)
    planning.check_unchanged(planned_input)
    file.write_bytes(b"one\ntwo\n")
    with pytest.raises(JobError, match=r"a\.jsonl changed after the run was planned \(4 bytes then\)"):
        planning.check_unchanged(planned_input)
    file.unlink()
    with pytest.raises(JobError, match=r"a\.jsonl changed"):
        planning.check_unchanged(planned_input)


def test_a_release_that_reads_pairs_is_not_planned(state: StateSettings, client: "redis.Redis", tmp_path: Path) -> None:
    facts = Facts("pairs", "", Output(OutputKind.REGRESSION, ("same",), 1), Reads(8, pairs=True), "", "", ())
    store = Store(tmp_path)
    pointer.promote(store, client, store.seal({"config.json": b"{}"}, facts).id)
    write_day(state, [message(0, "hello")])
    with pytest.raises(JobError, match="reads pairs of texts; lines of the archive hold one"):
        planned(replace(state, releases=str(tmp_path)), client)

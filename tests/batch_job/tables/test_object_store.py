"""The tables behind a URL: the commit rule on a real S3 server, whose connections, answers and credentials fail."""

import time
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from batch_job.shards import schemas, shard_files
from batch_job.shards.shard_files import Target
from batch_job.tables import resumable, table
from shared_model.errors import JobError, Stale
from shared_model.objects import open_objects
from tests import object_store
from tests.batch_job.tables.test_table import DAY, DAYS, FEW_DAYS, append, commit, ids_of, nothing, run_race, score_file
from tests.object_store import KEY, SECRET, Fault, Proxy

LOG = "/_delta_log/"


def test_a_newer_attempt_replaces_the_partition_and_an_older_one_is_stale(s3_url: str) -> None:
    commit(s3_url, 1, ["a", "b"])
    commit(s3_url, 7, ["other"], "2026-01-15")
    version = commit(s3_url, 2, ["c"])
    assert (ids_of(s3_url), ids_of(s3_url, "2026-01-15")) == (["c"], ["other"])
    assert table.committed(DeltaTable(s3_url), DAY) == table.Committed(2, "plan", version, 1)
    with pytest.raises(Stale, match="attempt 2 at ds=2026-01-14 is committed"):
        commit(s3_url, 2, ["d"])


def test_an_attempt_is_refused_on_the_snapshot_it_would_commit_on(s3_url: str) -> None:
    commit(s3_url, 1, ["a"])
    landed: list[int] = []

    def overtake() -> None:
        if not landed:
            landed.append(commit(s3_url, 9, ["newer"]))

    with pytest.raises(Stale, match="attempt 9"):
        table.replace_partition(s3_url, DAY, [score_file(s3_url, 5, ["older"])], 5, overtake, {})
    assert ids_of(s3_url) == ["newer"]


@pytest.mark.parametrize("days", [FEW_DAYS // 4, pytest.param(len(DAYS), marks=pytest.mark.proof)])
def test_racing_processes_never_leave_two_attempts_in_a_day(s3_url: str, days: int) -> None:
    # Each look at the table reads what was committed since its last checkpoint: without, 60,000 requests of 30 days.
    often = {"delta.checkpointInterval": "5"}
    table.open_table(s3_url, table.SCORES).alter.set_table_properties(often)
    assert run_race(s3_url, days, naive=False) == []


@pytest.mark.proof
def test_racing_processes_never_leave_two_attempts_in_a_day_on_azure(az_url: str) -> None:
    assert run_race(az_url, FEW_DAYS, naive=False) == []


@pytest.mark.proof
def test_of_two_commits_on_azure_one_is_refused_on_the_snapshot_it_would_commit_on(az_url: str) -> None:
    test_an_attempt_is_refused_on_the_snapshot_it_would_commit_on(az_url)
    commit(az_url, 10, ["again"])
    assert ids_of(az_url) == ["again"]


@pytest.mark.proof
def test_control_without_the_rule_racing_processes_do(s3_url: str) -> None:
    assert run_race(s3_url, len(DAYS), naive=True) != []


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.CUT, Fault.BUSY, Fault.STALL])
def test_a_commit_that_meets_a_fault_happens_once(s3: Proxy, s3_url: str, fault: Fault) -> None:
    commit(s3_url, 1, ["a"])
    before = DeltaTable(s3_url).version()
    s3.inject(fault, 1, path=LOG)
    assert commit(s3_url, 2, ["b"]) == before + 1
    s3.inject(fault, 1, path=LOG)
    append(s3_url, ["asked"])
    assert not s3.pending
    assert DeltaTable(s3_url).version() == before + 2
    assert ids_of(s3_url, source=schemas.ARCHIVE) == ["b"]
    assert ids_of(s3_url, source=schemas.DEFERRED) == ["asked"]


def test_quarantined_lines_are_added_once_where_the_answer_is_lost(s3: Proxy, s3_url: str) -> None:
    table.open_table(s3_url, table.QUARANTINE)
    s3.inject(Fault.LOST, 1, path=LOG)
    file = score_file(s3_url, 1, ["a"], source="")
    assert table.add_quarantined(s3_url, DAY, [file], 1) == DeltaTable(s3_url).version() == 1
    assert not s3.pending
    assert len(DeltaTable(s3_url).file_uris()) == 1


def test_a_commit_that_is_given_up_is_one_line_and_leaves_the_day_as_it_was(
    s3: Proxy, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(s3_url, 1, ["a"])
    file = score_file(s3_url, 2, ["b"])
    monkeypatch.setattr(table, "_SERVICE_FAILURES", 1)
    s3.expire()
    with pytest.raises(JobError, match=r"ExpiredToken: The provided token has expired") as raised:
        table.replace_partition(s3_url, DAY, [file], 2, nothing, {})
    shown = "".join(traceback.format_exception(raised.value))
    assert KEY not in str(raised.value)
    assert SECRET not in shown
    assert "\n" not in str(raised.value)
    s3.clear()
    assert ids_of(s3_url) == ["a"]


def test_credentials_that_expire_within_a_commit_are_read_again(
    s3: Proxy, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    object_store.refresh_from_endpoint(s3, tmp_path, monkeypatch)
    commit(s3_url, 1, ["a"])
    file = score_file(s3_url, 2, ["b"])

    def expire() -> None:
        """Between the look at the table and the put of the commit."""
        s3.expire(then="ASIAANOTHER")

    table.replace_partition(s3_url, DAY, [file], 2, expire, {})
    assert ids_of(s3_url) == ["b"]


def test_a_sweep_leaves_shards_to_those_who_adopted_them(s3_url: str) -> None:
    target = Target(s3_url, DAY, "plan", 2)
    left, old = (score_file(s3_url, 1, [name]) for name in ("left", "old"))
    shard_files.write_sidecar(target, left)
    commit(s3_url, 2, ["a"])
    files, now = open_objects(s3_url), time.time()
    resumable.sweep(target, now)
    assert files.find(left.path)
    assert files.find(shard_files.sidecar(left.path)) is None
    # A newer attempt had adopted it.
    table.replace_partition(s3_url, DAY, [left], 3, nothing, {})
    resumable.sweep(replace(target, token=3), now + 2 * resumable.KEEP_SECONDS)
    assert files.find(old.path) is None
    assert ids_of(s3_url) == ["left"]

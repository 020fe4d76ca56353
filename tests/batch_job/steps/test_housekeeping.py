"""`housekeeping` on real files, tables and Redis: what expires, what stays, and what is said of replicas."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
import redis
from deltalake import DeltaTable

from batch_job import run_record
from batch_job.run_record import RunRecord, State
from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport, Target, write_file
from batch_job.tables import quarantined, table
from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.storage_pb2 import ReplicaProfile, ReplicaState
from shared_model.redis_store import keys
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, NEXT_DAY, Cli
from tests.batch_job.tables import test_compaction
from tests.batch_job.test_run_record import PLANNED

OLD = 91 * 86_400


def aged(path: Path, seconds: float = OLD) -> None:
    then = datetime.now(UTC).timestamp() - seconds
    os.utime(path, (then, then))


def ran(state: StateSettings, run_id: str, record: RunRecord, seconds: float = OLD) -> Path:
    path = state.runs_dir / DAY / f"{run_id}.json"
    run_record.write(path, replace(record, ds=DAY, run_id=run_id))
    folder = path.with_suffix("")
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("a page")
    aged(path, seconds)
    return path


def test_old_runs_go_with_their_reports_and_those_that_wait_for_a_person_stay(cli: Cli, state: StateSettings) -> None:
    old, young = ran(state, "old", PLANNED), ran(state, "young", PLANNED, seconds=OLD - 2 * 86_400)
    waiting = ran(state, "waiting", replace(PLANNED, state=State.REFUSED, staged="ds=x/a.staged"))
    damaged = ran(state, "damaged", PLANNED)
    damaged.write_text("{")
    aged(damaged)
    done = cli("housekeeping")
    assert done.returncode == 0, done.stderr
    assert "1 runs older than 90 days deleted" in done.stdout
    assert not old.exists()
    assert not old.with_suffix("").exists()
    for kept in (young, waiting, damaged):
        assert kept.exists()
        assert (kept.with_suffix("") / "report.html").exists()


@pytest.mark.parametrize(("name", "value"), [("RUNS", "0"), ("RUNS", "6"), ("QUARANTINE", "3")])
def test_nothing_expires_sooner_than_a_person_may_answer_and_0_keeps_all(
    cli: Cli, state: StateSettings, environment: dict[str, str], name: str, value: str
) -> None:
    old = ran(state, "old", PLANNED)
    environment[f"TANDEM_KEEP_{name}_DAYS"] = value
    done = cli("housekeeping")
    assert old.exists()
    if value == "0":
        assert done.returncode == 0
        assert "runs older" not in done.stdout
    else:
        assert done.returncode == 2
        assert f"TANDEM_KEEP_{name}_DAYS='{value}': expected 7 or more, or 0" in done.stderr


def quarantine(folder: Path, ds: str, attempt: int) -> None:
    line = {"attempt": attempt, "file": "a", "reason": "json", "raw": b"x", "raw_bytes": 1}
    rows = pa.RecordBatch.from_pylist([line], schema=schemas.QUARANTINE)
    report = FileReport(*write_file(Target(str(folder), ds, "plan", attempt), schemas.QUARANTINE, [rows]))
    table.add_quarantined(folder, ds, [report], attempt)


def test_quarantined_lines_of_a_day_expire_together_and_its_token_stays(tmp_path: Path) -> None:
    folder = tmp_path / "quarantine"
    for attempt, ds in enumerate((DAY, NEXT_DAY, DAY), 3):
        quarantine(folder, ds, attempt)
    files = pa.table(DeltaTable(folder).get_add_actions(flatten=True)).to_pylist()
    added = [datetime.fromtimestamp(it / 1000, UTC) for it in sorted(file["modification_time"] for file in files)]
    # The older lines of a day stay as long as its newest.
    assert quarantined.expire(folder, added[0]) == 0
    assert quarantined.expire(folder, added[2]) == 1
    assert sum(map(sum, (table.quarantined(folder, DAY, it).values() for it in (3, 5)))) == 2
    assert table.quarantined(folder, NEXT_DAY, 4) == {}
    assert table.last_attempt([folder], NEXT_DAY) == 4
    assert quarantined.expire(folder, added[2]) == 0
    assert quarantined.expire(tmp_path / "none", added[2]) == 0


def test_small_files_of_older_days_are_merged_in_both_tables_and_young_days_stay(
    cli: Cli, state: StateSettings, client: "redis.Redis"
) -> None:
    young = (datetime.now(UTC) - timedelta(days=2)).date().isoformat()
    for ds in (DAY, young):
        test_compaction.commit_shards(state.scores_table, "abc", ds)
        for _ in range(2):
            quarantine(state.quarantine_table, ds, 4)
    done = cli("housekeeping")
    assert done.returncode == 0, done.stderr
    assert "5 files of 2 days before" in done.stdout
    assert "merged into 2; 0 files of 0.0 MB deleted" in done.stdout
    for folder, older, younger in ((state.scores_table, 1, 3), (state.quarantine_table, 1, 2)):
        files = DeltaTable(folder).file_uris()
        assert (sum(DAY in it for it in files), sum(young in it for it in files)) == (older, younger)
    for path in (state.scores_table, state.quarantine_table):
        test_compaction.forget_recent(Path(path))
    again = cli("housekeeping")
    assert again.returncode == 0, again.stderr
    assert "0 files of 0 days before" in again.stdout
    assert "; 5 files of " in again.stdout
    assert len(test_compaction.paths(state.scores_table)) == 4


def test_what_publishers_and_deleted_releases_left_in_redis_goes(
    cli: Cli, client: "redis.Redis", release: Release
) -> None:
    gone, answering = "gone-0123456789ab", "lost-0123456789ab"
    client.set(keys.epoch_filter(release.id, "x"), b"", ex=99_999)
    client.hset(keys.epoch_facts(release.id, "y.staged-1"), "count", 1)
    for name in (gone, answering, release.id):
        client.hset(keys.epoch_pointer(name), "epoch", "e")
    client.hset(keys.epoch_facts(answering, "e"), "count", 1)
    client.expire(keys.epoch_facts(answering, "e"), 99_999)
    done = cli("housekeeping")
    assert done.returncode == 0, done.stderr
    assert "2 keys deleted that killed publishers and deleted releases had left" in done.stdout
    assert not client.exists(keys.epoch_pointer(gone))
    assert client.exists(keys.epoch_pointer(answering), keys.epoch_pointer(release.id)) == 2
    assert 0 < client.ttl(keys.epoch_facts(release.id, "y.staged-1")) <= 600
    assert client.ttl(keys.epoch_filter(release.id, "x")) > 600


@pytest.mark.parametrize("serves", ["active", "other", "pinned"])
def test_a_replica_that_serves_another_release_fails_it_by_name(
    cli: Cli, client: "redis.Redis", state: StateSettings, release: Release, serves: str
) -> None:
    wanted = pointer.read(Store.from_settings(state), client)
    description = ReplicaDescription(id="r1", release=wanted.active if serves == "active" else "other-0123456789ab")
    profile = ReplicaProfile(replica=description, lanes=["latency"], pointer_version=wanted.version)
    profile.pinned = serves == "pinned"
    client.sadd(keys.replicas(), "r1")
    client.set(keys.replica("r1"), ReplicaState(profile=profile.SerializeToString()).SerializeToString())
    done = cli("housekeeping")
    if serves == "active":
        assert (done.returncode, f"release {release.id}: 1 of 1 replicas follow" in done.stdout) == (0, True)
    else:
        assert done.returncode == 1
        why = "pinned to a release of their own: r1" if serves == "pinned" else "0 of 1 replicas follow; waiting: r1"
        assert done.stderr.startswith(f"batch_job housekeeping: release {release.id}: ")
        assert why in done.stderr

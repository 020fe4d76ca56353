"""The `housekeeping` step: what is old expires, and all paths serve one release. No JVM.

Deferred results and complete epochs expire in Redis by themselves.
"""

import argparse
import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import redis

from batch_job import lookup, run_record
from batch_job.identity import Tables
from batch_job.lookup import RecordFile
from batch_job.progress import log
from batch_job.run_record import RecordError
from batch_job.settings import HousekeepingSettings
from batch_job.tables import compaction, fence, quarantined
from shared_model import settings
from shared_model.commands import await_replicas
from shared_model.errors import Refused, StoreUnavailable
from shared_model.objects import Location, open_objects
from shared_model.published import epochs
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointers
from shared_model.releases.store import Store
from shared_model.settings import StateSettings

#: Younger days are not merged: late requests and other runs of the day still add to them.
_SETTLED = timedelta(days=3)


def run(args: argparse.Namespace, state: StateSettings) -> None:
    """Raises: Refused where a replica does not serve the release that is active; JobError, StoreUnavailable."""
    chosen, now, store = settings.load(HousekeepingSettings), datetime.now(UTC), Store.from_settings(state)
    if days := chosen.keep_runs_days:
        gone = expire_runs(state.runs_dir, now - timedelta(days=days))
        print(f"{gone:,} runs older than {days} days deleted")
    if days := chosen.keep_quarantine_days:
        old = [quarantined.expire(it.quarantine, now - timedelta(days=days)) for it in Tables.all(state)]
        print(f"quarantined lines of {sum(old):,} days older than {days} days deleted")
    compact(state, (now - _SETTLED).date().isoformat())
    with RedisServer(state) as server, fence.connect(server.url) as client:
        left = epochs.expire(client, store.ids())
        print(f"{left} keys deleted that killed publishers and deleted releases had left")
        problems = list(_not_served(store, client)) if _may_read_heartbeats(client) else []
    if problems:
        raise Refused("; ".join(problems))


def compact(state: StateSettings, before: str) -> None:
    """Merge small files of the days before a day, and delete those that no reader needs. Raises: JobError."""
    done = [compaction.compact(folder, before) for tables in Tables.all(state) for folder in tables.folders]
    merged = f"{sum(it.before for it in done):,} files of {sum(it.days for it in done):,} days before {before}"
    deleted = f"{sum(it.deleted for it in done):,} files of {sum(it.freed for it in done) / 1e6:,.1f} MB"
    print(f"{merged} merged into {sum(it.after for it in done):,}; {deleted} deleted, which nothing needs")


def expire_runs(runs: Location, before: datetime) -> int:
    """Delete records and folders of runs that were last written before a moment; those that wait for a person stay."""
    old = [it for it in lookup.record_files(runs) if it.modified < before and not _waits(it)]
    files = open_objects(runs)
    for it in old:
        folder = f"{it.day}/{it.run_id}"
        # The record goes last: a call that is killed before finds the rest by it.
        files.delete(*(found.path for found in files.list(folder)))
        files.delete(f"{folder}.json")
        if isinstance(runs, Path):
            for empty in (runs / folder, runs / it.day):
                # Other runs of the day stay.
                with contextlib.suppress(OSError):
                    empty.rmdir()
    return len(old)


def _waits(file: RecordFile) -> bool:
    try:
        return run_record.read(file.path).waits
    except RecordError as error:
        log(f"{error}; it is kept, because its scores may wait for a person")
        return True


def _may_read_heartbeats(client: "redis.Redis") -> bool:
    """Raises: StoreUnavailable."""
    try:
        client.scard(keys.replicas())
    except redis.exceptions.NoPermissionError:
        print("replicas not checked: the Redis user may not read heartbeats; `nightly` may with Redis 7 or later")
        return False
    except redis.RedisError as error:
        raise StoreUnavailable(f"looking for replicas: {error}") from error
    return True


def _not_served(store: Store, client: "redis.Redis") -> Iterator[str]:
    """A line for each model: printed, and given where a replica does not serve what is active. Raises: ReleaseError,
    StoreUnavailable."""
    found, replicas = pointers.read(store, client), await_replicas.read(client)
    defaults = {"": found.default} if found.default else {}
    for model, wanted in {**defaults, **found.others}.items():
        now = await_replicas.progress(replicas, wanted, model)
        line = f"release {wanted.active}: {'; '.join(str(now).splitlines())}"
        if now.pinned and not now.known:
            # Otherwise its text names them.
            line += f"; pinned to a release of their own: {', '.join(now.pinned)}"
        print(line)
        if now.waiting or now.failed or now.pinned:
            yield line

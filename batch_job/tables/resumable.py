"""Resumable shards: files of a killed attempt that no version of a table holds.

A later attempt with the same input fingerprint adopts finished shards: its commit names their files. Other files are
deleted: an attempt's temporary files when it ends; once it has committed, the sidecars and lists that it or an older
attempt at its day has left; everything after KEEP_SECONDS, but for shards that a list names (`tables.staged`). Files
that any version of the table holds stay until `vacuum`: readers of that version need them.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial

from pyspark.sql import SparkSession

from batch_job.inputs import delta
from batch_job.progress import log
from batch_job.shards import shard_files
from batch_job.shards.binning import Bin
from batch_job.shards.shard_files import FileReport, Target
from batch_job.spark.session import slots_of
from batch_job.tables import staged, table
from shared_model.objects import ObjectInfo, is_url, open_objects

#: How long a killed attempt's shards wait for another attempt at their day.
KEEP_SECONDS = 7 * 24 * 3600
#: A shard that is adopted must outlive the attempt that adopts it.
_ADOPTABLE = timedelta(seconds=KEEP_SECONDS - 24 * 3600)

#: A data file, its sidecar, a tally, a list of staged files, or one of them while it is being written: see
#: `shard_files.Target`.
_OURS = re.compile(
    r"\.?(?P<stem>[0-9a-z]+\.[0-9a-z-]+\.(?P<token>\d+)\.[0-9a-f]+-[0-9a-f]+)(\.(parquet|json|staged|part|[0-9a-f]{8}))*"
)


def adopt_finished(spark: SparkSession, target: Target, bins: Sequence[Bin]) -> list[FileReport]:
    """Adopt the finished shards of earlier attempts with the same fingerprint, where they make up a whole bin: the
    commit will name their files. Executors read them: a shard counts if its file has the size and the SHA-256 of its
    report."""
    oldest = datetime.now(UTC) - _ADOPTABLE
    found = sorted(note.path for note in shard_files.sidecars(target) if note.modified > oldest)
    if not found:
        return []
    read = spark.sparkContext.parallelize(found, min(len(found), slots_of(spark))).flatMap(
        partial(_finished, target=target)
    )
    reports = map(FileReport.from_json, read.collect())
    adopted = [replace(report, adopted=True) for report in of_whole_bins(reports, bins)]
    if adopted:
        rows = sum(report.judged for report in adopted)
        log(f"ds={target.ds}: {len(adopted)} shards of {rows:,} rows adopted from an earlier attempt")
    return adopted


def _finished(note: str, target: Target) -> list[str]:
    report = shard_files.finished(note, target)
    return [report.to_json()] if report else []


def of_whole_bins(reports: Iterable[FileReport], bins: Sequence[Bin]) -> Iterator[FileReport]:
    """One report for each shard of those bins that are there with all their rows."""
    parts: dict[int, dict[int, FileReport]] = defaultdict(dict)
    for report in reports:
        parts[report.bin_number][report.part] = report
    for bin_ in bins:
        if sum(report.judged for report in parts[bin_.number].values()) == bin_.rows:
            yield from parts[bin_.number].values()


def remove_temporary(target: Target) -> None:
    """Delete what an attempt was in the midst of writing."""
    begin, ours = f".{target.fingerprint}.", f".{target.token}.{target.driver}-"
    names = ((found.path, shard_files.name_of(found.path)) for found in shard_files.in_folder(target))
    open_objects(target.table).delete(*(path for path, name in names if name.startswith(begin) and ours in name))


def remove_own(target: Target) -> None:
    """Delete all that one driver wrote and no version of the table holds."""
    if delta.find_table(target.table) is None:
        return
    held, _ = table.ever_held(target.table)
    ours, found = f".{target.token}.{target.driver}-", (it.path for it in shard_files.in_folder(target))
    names = ((path, shard_files.name_of(path)) for path in found)
    open_objects(target.table).delete(*(path for path, name in names if ours in name and name not in held))


def sweep(target: Target, now: float) -> None:
    """Delete files that are no longer needed, once `target` is committed. `now`: Unix time.

    Sidecars, lists and unfinished files of this and older attempts at the day go at once: nothing adopts or commits
    their shards from now on. The shards themselves stay for KEEP_SECONDS, because a newer attempt may have adopted some
    before, and longer where a younger list names them, because a person may still have them committed.
    """
    if delta.find_table(target.table) is None:
        return
    held, since = table.ever_held(target.table)
    unneeded, left = list[str](), list(_left_over(target))
    waiting = staged.names(target.table, (it for it in left if it.modified.timestamp() >= now - KEEP_SECONDS))
    for found in left:
        name, changed = _OURS.fullmatch(shard_files.name_of(found.path)), found.modified.timestamp()
        if name is None or changed < since:
            continue
        superseded = found.path.startswith(f"{target.folder}/") and int(name["token"]) <= target.token
        shard = found.path.endswith(f"/{name['stem']}.parquet")
        if shard and f"{name['stem']}.parquet" in held | waiting:
            continue
        if changed < now - KEEP_SECONDS or (superseded and not shard):
            unneeded.append(found.path)
    # Some may be gone: another attempt may be sweeping too.
    open_objects(target.table).delete(*unneeded)


def _left_over(target: Target) -> Iterator[ObjectInfo]:
    """Of every day in a folder. Behind a URL, where a list is a request for each thousand objects, of the target's day
    and of the one whose shards are past their time."""
    files = open_objects(target.table)
    if not is_url(target.table):
        yield from (found for found in files.list() if found.path.startswith("ds="))
        return
    yield from files.list(f"ds={target.ds}")
    yield from files.list(f"ds={date.fromisoformat(target.ds) - timedelta(seconds=KEEP_SECONDS + 24 * 3600)}")

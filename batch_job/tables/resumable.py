"""Resumable shards: files of a killed attempt that no version of a table holds.

A later attempt with the same input fingerprint adopts finished shards. Other files are deleted: an attempt's temporary
files when it ends; once it has committed, the files that it or an older attempt at its day has left; everything after
KEEP_SECONDS. Files that any version of the table holds stay until `vacuum`: readers of that version need them.
"""

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from batch_job.progress import log
from batch_job.shards import shard_files
from batch_job.shards.binning import Bin
from batch_job.shards.shard_files import FileReport, Target
from batch_job.spark.session import slots_of
from batch_job.tables import table
from shared_model.storage import temporary_file

#: How long a killed attempt's shards wait for another attempt at their day.
KEEP_SECONDS = 7 * 24 * 3600

#: A data file, its sidecar, a tally, or one of them while it is being written; see `shard_files.Target`.
_OURS = re.compile(
    r"\.?(?P<stem>[0-9a-z]+\.[0-9a-z-]+\.(?P<token>\d+)\.[0-9a-f]+-[0-9a-f]+)(\.(parquet|json|part|[0-9a-f]{8}))*"
)


def adopt_finished(spark: SparkSession, target: Target, bins: Sequence[Bin]) -> list[FileReport]:
    """Adopt the finished shards of earlier attempts with the same fingerprint, where they make up a whole bin.
    Executors read them back: a shard counts if its file has the size and the SHA-256 of its report."""
    found = sorted(map(str, Path(target.table, target.folder).glob(f"{target.fingerprint}.*.json")))
    if not found:
        return []
    read = spark.sparkContext.parallelize(found, min(len(found), slots_of(spark))).flatMap(
        partial(_finished, target=target)
    )
    reports = map(FileReport.from_json, read.collect())
    own = [adopted(report, target) for report in of_whole_bins(reports, bins)]
    if own:
        rows = sum(report.judged for report in own)
        log(f"ds={target.ds}: {len(own)} shards of {rows:,} rows adopted from an earlier attempt")
    return own


def _finished(note: str, target: Target) -> list[str]:
    report = shard_files.finished(Path(note), target)
    return [report.to_json()] if report else []


def of_whole_bins(reports: Iterable[FileReport], bins: Sequence[Bin]) -> Iterator[FileReport]:
    """One report for each shard of those bins that are there with all their rows."""
    parts: dict[int, dict[int, FileReport]] = defaultdict(dict)
    for report in reports:
        parts[report.bin_number][report.part] = report
    for bin_ in bins:
        if sum(report.judged for report in parts[bin_.number].values()) == bin_.rows:
            yield from parts[bin_.number].values()


def adopted(report: FileReport, target: Target) -> FileReport:
    """A finished shard under this attempt's own name. The attempt that wrote it may be alive, commit, and delete files
    that it did not use; and a file that a version of the table has let go of is not added again."""
    shard = shard_files.shard_name(report.bin_number, report.part)
    own = replace(report, path=target.path(shard, report.sha256), adopted=True)
    theirs, ours = Path(target.table, report.path), Path(target.table, own.path)
    with shard_files.writing(ours), temporary_file(ours.with_name(f".{ours.name}.part")) as temporary:
        try:
            os.link(theirs, temporary)
        except OSError:
            shutil.copyfile(theirs, temporary)
        temporary.replace(ours)
    shard_files.write_sidecar(target, own)
    return own


def remove_temporary(target: Target) -> None:
    """Delete what an attempt was in the midst of writing."""
    for path in Path(target.table, target.folder).glob(f".{target.fingerprint}.*.{target.token}.{target.driver}-*"):
        path.unlink(missing_ok=True)


def remove_own(target: Target) -> None:
    """Delete all that one driver wrote and no version of the table holds."""
    if not DeltaTable.is_deltatable(target.table):
        return
    held, _ = table.ever_held(Path(target.table))
    for path in Path(target.table, target.folder).glob(f"*.{target.token}.{target.driver}-*"):
        if path.name not in held:
            path.unlink(missing_ok=True)


def sweep(target: Target, now: float) -> None:
    """Delete files that are no longer needed, once `target` is committed. `now`: Unix time."""
    folder = Path(target.table)
    if not DeltaTable.is_deltatable(target.table):
        return
    held, since = table.ever_held(folder)
    for path in folder.glob("ds=*/**/*"):
        if (name := _OURS.fullmatch(path.name)) is None or f"{name['stem']}.parquet" in held:
            continue
        superseded = path.parent == folder / target.folder and int(name["token"]) <= target.token
        # Another attempt may be sweeping too.
        with suppress(FileNotFoundError):
            changed = path.stat().st_mtime
            if changed >= since and (superseded or changed < now - KEEP_SECONDS):
                path.unlink()

"""The commit of an attempt's files, at once or after a person has accepted them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from batch_job.progress import log
from batch_job.run_record import Scoring
from batch_job.shards import summary
from batch_job.tables import resumable, table
from batch_job.tables.staged import Staged
from shared_model.objects import located


def commit(
    written: Staged, quarantine: str, still_ours: Callable[[], None], facts: Mapping[str, str] = MappingProxyType({})
) -> Scoring:
    """Make the written files the day's scores, in one transaction. `quarantine`: that table, to sweep it as well;
    `facts`: more for the commit to hold.

    Raises: Stale when a newer attempt owns the day, from `still_ours` or from the table; JobError when the table cannot
    be written.
    """
    target, files, began = written.target, written.to_commit, time.monotonic()
    log(f"ds={target.ds}: committing {len(files):,} files of {sum(file.rows for file in files):,} rows")
    version = table.replace_partition(
        located(target.table), target.ds, files, target.token, still_ours, {**written.facts, **facts}
    )
    seconds = {**written.seconds, "commit": time.monotonic() - began}
    for swept in (target, replace(target, table=quarantine, source="")):
        resumable.sweep(swept, time.time())
    return summary.scoring(
        target, version, written.files, written.quarantined, written.quarantine_version, seconds, written.slots
    )

"""The work of executors, as spans of the driver: they have no exporter of their own."""

from collections import defaultdict
from collections.abc import Iterable

from batch_job.shards.shard_files import FileReport
from shared_model import tracing


def note(reports: Iterable[FileReport]) -> None:
    """A span for the shards of each process, from its first text to its last file."""
    groups: dict[int, list[FileReport]] = defaultdict(list)
    for report in reports:
        if report.began:
            groups[report.pid].append(report)
    for group in groups.values():
        began, ended = min(it.began for it in group), max(it.ended for it in group)
        rows, tokens = sum(it.rows for it in group), sum(it.tokens for it in group)
        busy = sum(it.device_busy for it in group)
        tracing.past("shards", began, ended, shards=len(group), rows=rows, tokens=tokens, device_seconds=busy)

"""Committed days of chosen labels, scores and lengths."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from batch_job.tables import table
from tests.batch_job.shards import written

RELEASE = "small-0123456789ab"


def commit(
    folder: Path,
    ds: str,
    labels: Sequence[str],
    scores: Sequence[float] = (),
    tokens: Sequence[int] = (),
    releases: Sequence[str] = (),
    cut: int = 0,
) -> None:
    """Make these rows the day's. `cut`: rows whose text was too long."""
    rows = written.batch(
        [f"text {number}" for number in range(len(labels))], labels, [(it, 0.0) for it in scores], tokens
    )
    if releases:
        rows = rows.set_column(rows.schema.get_field_index("release"), "release", pa.array(releases))
    truncated = pa.array([number < cut for number in range(len(labels))])
    rows = rows.set_column(rows.schema.get_field_index("truncated"), "truncated", truncated)
    report = written.file(folder, rows, ds=ds)
    table.replace_partition(folder, ds, [report], 1, lambda: None, {"tandem.ds": ds, "tandem.attempt": "1"})

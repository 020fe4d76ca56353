"""Counts of committed rows by day and release: how often each label, score and length is there."""

import os
from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from batch_job.progress import watched
from batch_job.shards import schemas, shard_files
from batch_job.tables.table import partition_filter
from shared_model import objects
from shared_model.errors import JobError

#: A score is counted as the number of whole hundredths in it.
HUNDREDTH = 0.01
_COLUMNS = ("release", "label", "score", "tokens", "truncated")
#: Files that are read at once: behind a URL each waits for its answers.
_READERS = 8

#: A day and a release.
Key = tuple[str, str]


@dataclass
class Counts:
    """Rows by label, by hundredths of the best label's score, and by tokens of the text as the model read it.
    `truncated`: rows whose text was cut to what the model reads."""

    rows: int = 0
    truncated: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    scores: Counter[int] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)

    def add(self, other: "Counts") -> None:
        self.rows += other.rows
        self.truncated += other.truncated
        self.labels += other.labels
        self.scores += other.scores
        self.lengths += other.lengths


def days(table: DeltaTable) -> list[str]:
    """The days that hold rows of the archive, in order."""
    actions = pa.table(table.get_add_actions(flatten=True))
    archive = actions.filter(pc.equal(actions["partition.source"], schemas.ARCHIVE))
    return sorted(archive["partition.ds"].unique().to_pylist())


def count(table: DeltaTable, wanted: Collection[str]) -> dict[Key, Counts]:
    """Counts of the archive's rows of these days. Reads no other columns. Raises: JobError naming a damaged file."""
    files = [
        (ds, uri)
        for ds in sorted(wanted)
        for uri in table.file_uris(file_pruning_predicate=partition_filter(ds, schemas.ARCHIVE))
    ]
    found: dict[Key, Counts] = {}
    with ThreadPoolExecutor(min(_READERS, 4 * (os.cpu_count() or 1))) as readers:
        read = readers.map(lambda file: (file[0], _of_file(*file)), files)
        for ds, by_release in watched("counting", "files", len(files), read):
            for release, counts in by_release.items():
                found.setdefault((ds, release), Counts()).add(counts)
    return found


def _of_file(ds: str, uri: str) -> dict[str, Counts]:
    """By release."""
    try:
        with objects.open_file(uri) as raw, pq.ParquetFile(raw, page_checksum_verification=True) as file:
            rows = pa.Table.from_batches(shard_files.in_columns(file, _COLUMNS))
    except (OSError, pa.ArrowException) as error:
        raise JobError(f"{uri} cannot be read: {str(error).partition(chr(10))[0]}; score ds={ds} again") from error
    hundredths = pc.cast(pc.floor(pc.divide(pc.cast(rows["score"], pa.float64()), HUNDREDTH)), pa.int64(), safe=False)
    rows = rows.set_column(rows.schema.get_field_index("score"), "score", hundredths)
    releases = rows["release"].unique().to_pylist()
    return {release: _counted(rows.filter(pc.equal(rows["release"], release))) for release in releases}


def _counted(rows: pa.Table) -> Counts:
    cut = pc.sum(rows["truncated"]).as_py() or 0
    return Counts(rows.num_rows, cut, *(_tally(rows, name) for name in ("label", "score", "tokens")))


def _tally(rows: pa.Table, name: str) -> Counter[Any]:
    """Rows by value; rows without one do not count."""
    return Counter(
        {it["values"]: it["counts"] for it in rows[name].value_counts().to_pylist() if it["values"] is not None}
    )

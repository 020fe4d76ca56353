"""The contents of written files, read back before they are committed, for the gate and the report. No Spark."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batch_job.run_record import LENGTH_STEP
from batch_job.shards import head_columns, schemas, shard_files
from batch_job.tables import table

_READ = ("text_hash", "label", "precision", "tokens", "top_k", "vector", "abstained", "heads")
_SAMPLED = ("text_hash", "top_k", "vector", "abstained", "precision", "heads")


@dataclass(frozen=True)
class Contents:
    """`not_finite`: scores that are NaN or infinite. `labels`: label → rows. `lengths`: rows by tokens, in steps of
    LENGTH_STEP. `sample`: the columns of `_SAMPLED` of the texts with the lowest hashes, in
    that order, each once."""

    rows: int
    not_finite: int
    labels: Mapping[str, int]
    lengths: tuple[int, ...]
    sample: pa.Table


def read(files: Iterable[tuple[str, str]], sample: int) -> Contents:
    """Read scores files, each by its path and SHA-256; every page's checksum and the hash are verified. `sample`: most
    texts to keep.

    Raises: JobError naming a file that cannot be read, or that is not as it was written.
    """
    found, not_finite, labels, lengths = 0, 0, Counter[str](), list[int]()
    lowest = pa.schema([schemas.SCORES.field(name) for name in _SAMPLED]).empty_table()
    for path, digest in files:
        for batch in shard_files.read_back(path, _READ, digest):
            found += batch.num_rows
            for numbers in head_columns.numbers(batch):
                not_finite += int(np.count_nonzero(~np.isfinite(numbers.to_numpy(zero_copy_only=False))))
            labels.update(count_labels(batch.column("label")))
            histogram = np.bincount((batch.column("tokens").to_numpy() - 1) // LENGTH_STEP).tolist()
            lengths = _added(lengths, histogram)
            lowest = _lowest(lowest, pa.Table.from_batches([batch.select(list(_SAMPLED))]), sample)
    return Contents(found, not_finite, dict(labels), tuple(lengths), lowest)


def merge(one: Contents, other: Contents, sample: int) -> Contents:
    """The contents of both one's and the other's files."""
    return Contents(
        one.rows + other.rows,
        one.not_finite + other.not_finite,
        dict(Counter(one.labels) + Counter(other.labels)),
        tuple(_added(one.lengths, other.lengths)),
        _lowest(one.sample, other.sample, sample),
    )


def read_labels(uris: Iterable[str], remedy: str) -> Counter[str]:
    """Label → rows of committed files, whose names hold their hashes. Raises: JobError naming a damaged file, with a
    remedy."""
    labels = Counter[str]()
    for uri in uris:
        for batch in table.read_file(uri, ["label"], remedy):
            labels.update(count_labels(batch.column("label")))
    return labels


def count_labels(labels: pa.ChunkedArray | pa.Array) -> dict[str, int]:
    """Label → rows, nulls left out."""
    counted = pc.value_counts(labels.drop_null()).to_pylist()
    return {pair["values"]: pair["counts"] for pair in counted}


def _added(lengths: Sequence[int], others: Sequence[int]) -> list[int]:
    return [one + other for one, other in zip_longest(lengths, others, fillvalue=0)]


def _lowest(lowest: pa.Table, fresh: pa.Table, most: int) -> pa.Table:
    """The `most` texts with the lowest hashes of both."""
    if lowest.num_rows == most and most:
        fresh = fresh.filter(pc.less(fresh.column("text_hash"), lowest.column("text_hash")[-1]))
    if not fresh.num_rows:
        return lowest
    both = pa.concat_tables([lowest, fresh]).sort_by("text_hash")
    hashes = both.column("text_hash").to_numpy()
    first = np.r_[True, hashes[1:] != hashes[:-1]]
    return both.filter(pa.array(first)).slice(0, most).combine_chunks()

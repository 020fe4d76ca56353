"""The contents of written files, read back before they are committed, for the gate and the report."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from batch_job.run_record import LENGTH_STEP
from batch_job.shards import schemas
from shared_model.errors import JobError

_READ = ("text_hash", "label", "precision", "tokens", "top_k", "vector")
_SAMPLED = ("text_hash", "top_k", "vector", "precision")


@dataclass(frozen=True)
class Contents:
    """`not_finite`: scores that are NaN or infinite. `labels`: label → rows. `lengths`: rows by tokens, in steps of
    LENGTH_STEP. `sample`: columns text_hash, top_k, vector and precision of the texts with the lowest hashes, in that
    order, each once."""

    rows: int
    not_finite: int
    labels: Mapping[str, int]
    lengths: tuple[int, ...]
    sample: pa.Table


def read(paths: Iterable[str], sample: int) -> Contents:
    """Read scores files, every page's checksum verified. `sample`: most texts to keep.

    Raises: JobError naming a file that cannot be read.
    """
    found, not_finite, labels, lengths = 0, 0, Counter[str](), np.zeros(0, np.int64)
    lowest = pa.schema([schemas.SCORES.field(name) for name in _SAMPLED]).empty_table()
    for path in paths:
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                for batch in file.iter_batches(columns=list(_READ)):
                    found += batch.num_rows
                    not_finite += _not_finite(batch)
                    labels.update(count_labels(batch.column("label")))
                    lengths = _sum(lengths, np.bincount((batch.column("tokens").to_numpy() - 1) // LENGTH_STEP))
                    lowest = _lowest(lowest, batch, sample)
        except (OSError, pa.ArrowException) as error:
            raise JobError(f"{path} cannot be read back: {error}; score the day again") from error
    return Contents(found, not_finite, dict(labels), tuple(lengths.tolist()), lowest)


def count_labels(labels: pa.ChunkedArray | pa.Array) -> dict[str, int]:
    """Label → rows, nulls left out."""
    counted = pc.value_counts(labels.drop_null()).to_pylist()
    return {pair["values"]: pair["counts"] for pair in counted}


def _not_finite(batch: pa.RecordBatch) -> int:
    numbers = (pc.struct_field(batch.column("top_k").flatten(), "score"), batch.column("vector").flatten())
    return sum(int(np.count_nonzero(~np.isfinite(it.to_numpy(zero_copy_only=False)))) for it in numbers)


def _sum(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of two histograms, the shorter may end early."""
    total = np.zeros(max(len(one), len(other)), np.int64)
    total[: len(one)] += one
    total[: len(other)] += other
    return total


def _lowest(lowest: pa.Table, batch: pa.RecordBatch, most: int) -> pa.Table:
    """The `most` texts with the lowest hashes of both."""
    fresh = pa.Table.from_batches([batch.select(list(_SAMPLED))])
    if lowest.num_rows == most and most:
        fresh = fresh.filter(pc.less(fresh.column("text_hash"), lowest.column("text_hash")[-1]))
    if not fresh.num_rows:
        return lowest
    both = pa.concat_tables([lowest, fresh]).sort_by("text_hash")
    hashes = both.column("text_hash").to_numpy()
    first = np.r_[True, hashes[1:] != hashes[:-1]]
    return both.filter(pa.array(first)).slice(0, most).combine_chunks()

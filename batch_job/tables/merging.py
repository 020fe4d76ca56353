"""Files of one partition made into few large ones that hold the same rows, every page with a checksum as before.

delta-rs would merge them too, but its files have neither: page checksums, and a hash and a fingerprint in their names.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark import Accumulator
from pyspark.sql import SparkSession

from batch_job.progress import Progress, log
from batch_job.shards import schemas, shard_files
from batch_job.shards.shard_files import FileReport, Target
from batch_job.tables import table
from shared_model.errors import JobError
from shared_model.objects import join

#: A day of so few files is committed as it is: merging would write each of its rows twice.
FEW = 8
#: Rows that are compressed together.
_ROW_GROUP = 65_536


def merge_shards(
    spark: SparkSession, target: Target, shards: Sequence[FileReport], most_bytes: float
) -> tuple[FileReport, ...]:
    """The files to commit in place of an attempt's shards, merged by executors. The shards stay: a later attempt may
    adopt them, should this one not commit.

    Raises: JobError within `failing_in_one_line`, naming a shard that is not as it was written.
    """
    in_order = sorted(shards, key=lambda it: (it.bin_number, it.part))
    together = groups([it.size for it in in_order], most_bytes) if len(shards) > FEW else []
    if len(together) in (0, len(shards)):
        return tuple(shards)
    log(f"ds={target.ds}: merging {len(shards):,} shards into {len(together):,} files")
    done = spark.sparkContext.accumulator(0)
    work = [(number, in_order[group]) for number, group in enumerate(together)]
    with Progress(f"ds={target.ds}: merging", "shards", len(shards), lambda: int(done.value)):
        parts = spark.sparkContext.parallelize(work, len(work))
        return tuple(parts.map(partial(_merge_group, target=target, done=done)).collect())


def groups(sizes: Sequence[int], most_bytes: float) -> list[slice]:
    """Neighbours to merge: of at most so many bytes together, unless one alone has more, and about as many in each."""
    count = max(1, -(-sum(sizes) // max(1, int(most_bytes))))
    share, found, begin, held = sum(sizes) / count, list[slice](), 0, 0
    for place, size in enumerate(sizes):
        if held and (held + size > most_bytes or held + size / 2 > share):
            found.append(slice(begin, place))
            begin, held = place, 0
        held += size
    return [*found, slice(begin, len(sizes))] if sizes else []


def merge(target: Target, schema: pa.Schema, files: Sequence[FileReport], name: str) -> FileReport:
    """Write the rows of these files of the table as one. Raises: JobError naming one that is not as it was written, or
    the new one where it cannot be written."""
    remedy = f"score ds={target.ds} again"
    batches = (
        batch for it in files for batch in table.read_file(str(join(target.table, it.path)), schema.names, remedy)
    )
    merged = FileReport(
        *shard_files.write_file(target, schema, _in_row_groups(batches), name), fingerprint=target.fingerprint
    )
    if merged.rows != sum(file.rows for file in files):
        raise JobError(f"ds={target.ds}: {merged.rows:,} rows merged of {sum(file.rows for file in files):,}")
    return merged


def _merge_group(work: tuple[int, Sequence[FileReport]], target: Target, done: Accumulator[int]) -> FileReport:
    number, files = work
    merged = files[0] if len(files) == 1 else merge(target, schemas.SCORES, files, f"merged-{number}")
    done.add(len(files))
    return merged


def _in_row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at least so many: a file has a row group for each."""
    held = list[pa.RecordBatch]()
    for batch in batches:
        held.append(batch)
        if sum(it.num_rows for it in held) >= _ROW_GROUP:
            yield pa.concat_batches(held)
            held = []
    if held:
        yield pa.concat_batches(held)

"""The task that writes quarantined lines."""

from collections.abc import Iterator

import pyarrow as pa

from batch_job.shards.schemas import QUARANTINE
from batch_job.shards.shard_files import FileReport, Target, as_batch, chain, write_file

#: Bytes of a quarantined line that are kept.
RAW_KEPT = 4096
#: Bytes of lines after which a file ends.
FILE_BYTES = 64 << 20


def quarantine_rows(lines: pa.RecordBatch, attempt: int) -> pa.RecordBatch:
    raw = lines.column("raw").to_pylist()
    columns = {
        "attempt": [attempt] * len(raw),
        "file": lines.column("file"),
        "reason": lines.column("reason"),
        "raw": [line[:RAW_KEPT] for line in raw],
        "raw_bytes": [len(line) for line in raw],
    }
    return pa.RecordBatch.from_pydict(columns, schema=QUARANTINE)


def write_quarantine(lines: Iterator[pa.RecordBatch], target: Target) -> Iterator[pa.RecordBatch]:
    """mapInArrow: write one task's quarantined lines and report each file."""
    first = next(lines, None)
    if first is None:
        return
    quarantined = (quarantine_rows(batch, target.token) for batch in chain(first, lines))
    for number, batches in enumerate(_files(quarantined)):
        yield as_batch(FileReport(*write_file(target, QUARANTINE, batches, f"rows{number or ''}")))


def _files(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """The rows of each file, which is in memory as a whole."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(it.nbytes for it in held) > FILE_BYTES:
            yield held
            held = []
    if held:
        yield held

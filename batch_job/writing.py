"""The Parquet files that executors write. Only files a task reported are ever committed; the rest are litter."""

import os
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batch_job import rows, scoring
from batch_job.reading import read_line
from batch_job.scoring import ScoringOptions
from shared_model.encoding import Text


@dataclass(frozen=True)
class Target:
    """Where an attempt's files go: TABLE/ds=<ds>/<plan id>.<token>.<driver>-<file>.parquet.

    The name says which plan a file belongs to, so that the table itself knows what produced a partition, and which
    driver: a Redis that lost its memory may hand out a token twice.
    """

    table: str
    ds: str
    plan_id: str
    token: int
    driver: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    @property
    def prefix(self) -> str:
        return f"{self.plan_id}.{self.token}.{self.driver}-"

    def new_path(self) -> str:
        """A path, relative to the table, that no other task attempt will choose."""
        return f"ds={self.ds}/{self.prefix}{uuid.uuid4().hex[:8]}.parquet"


@dataclass(frozen=True)
class FileReport:
    """What a task says of the file it wrote. `size` in bytes; `waited`, `ran`, `wrote` in seconds."""

    path: str
    size: int
    rows: int
    tokens: int = 0
    padded_tokens: int = 0
    precision: str = ""
    pid: int = 0
    width: int = 0
    waited: float = 0.0
    ran: float = 0.0
    wrote: float = 0.0


#: FileReport for Spark.
REPORT_DDL = (
    "path string, size long, rows long, tokens long, padded_tokens long, precision string, pid long, width long, "
    "waited double, ran double, wrote double"
)


def write_scores(lines: Iterator[pa.RecordBatch], options: ScoringOptions, target: Target) -> Iterator[pa.RecordBatch]:
    """mapInArrow: score one task's lines, write them as one file, report it. An empty task writes nothing."""
    first = next(lines, None)
    if first is None:
        return
    model = scoring.open_model(options, scoring.task_threads())
    report = FileReport("", 0, 0, precision=model.engine.precision, pid=os.getpid(), width=model.engine.width)

    def scored() -> Iterator[pa.RecordBatch]:
        nonlocal report
        for window in scoring.score_windows(_chain(first, lines), _texts, model, options):
            report = replace(
                report,
                tokens=report.tokens + window.tokens,
                padded_tokens=report.padded_tokens + window.padded_tokens,
                waited=report.waited + window.waited,
                ran=report.ran + window.ran,
            )
            yield rows.score_rows(window, model)

    started = time.perf_counter()
    path, size, written = write_file(target, rows.SCORES, scored())
    wrote = time.perf_counter() - started - report.waited - report.ran
    yield _as_batch(replace(report, path=path, size=size, rows=written, wrote=wrote))


def write_quarantine(lines: Iterator[pa.RecordBatch], target: Target) -> Iterator[pa.RecordBatch]:
    """mapInArrow: write one task's quarantined lines as one file and report it."""
    first = next(lines, None)
    if first is None:
        return
    quarantined = (rows.quarantine_rows(batch, target.token) for batch in _chain(first, lines))
    yield _as_batch(FileReport(*write_file(target, rows.QUARANTINE, quarantined)))


def write_file(target: Target, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> tuple[str, int, int]:
    """Write one data file; returns its path relative to the table, its bytes and its rows."""
    path, written = target.new_path(), 0
    full = Path(target.table, path)
    full.parent.mkdir(parents=True, exist_ok=True)
    # Without page checksums most flipped bits read back as other values, silently.
    with pq.ParquetWriter(full, schema, compression="zstd", write_page_checksum=True) as writer:
        for batch in batches:
            writer.write_batch(batch)
            written += batch.num_rows
    return path, full.stat().st_size, written


def _as_batch(report: FileReport) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([asdict(report)])


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _texts(batch: pa.RecordBatch) -> list[Text]:
    return [read_line(line).text for line in batch.column("raw").to_pylist()]

"""The Parquet files that executors write. Only files that a task reported are committed; the rest can be resumed."""

import hashlib
import io
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from batch_job.shards import schemas
from batch_job.shards.schemas import NO_CONTENT
from shared_model import objects, storage
from shared_model.errors import JobError
from shared_model.objects import Location, ObjectInfo, open_objects

#: Digits of a file's hash in its name.
_DIGITS = 16
#: Finds them in a path, as the first group; a pattern of Python and of Java.
NAMED_HASH = rf"-([0-9a-f]{{{_DIGITS}}})\.parquet$"
_NAMED = re.compile(NAMED_HASH)


@dataclass(frozen=True)
class Target:
    """Where an attempt's files go: TABLE/ds=<ds>/source=<source>/<fingerprint>.<shard>.<token>.<driver>-<hash>.parquet.

    `source` is empty where the table has no such column. The name holds the input fingerprint, so that the table
    itself knows what produced a partition; which attempt, so that one that has committed knows what is older; and which
    driver: a Redis that lost its memory may hand out a token twice. Its end are the first digits of the file's SHA-256.
    """

    table: str
    ds: str
    fingerprint: str
    token: int
    driver: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    source: str = schemas.ARCHIVE

    @property
    def folder(self) -> str:
        """Relative to the table."""
        return f"ds={self.ds}/source={self.source}" if self.source else f"ds={self.ds}"

    def stem(self, shard: str) -> str:
        """The beginning of the names of all files for one shard."""
        return f"{self.fingerprint}.{shard}.{self.token}.{self.driver}"

    def path(self, shard: str, digest: str) -> str:
        """Relative to the table. A copy of a task writes another file, or the very same."""
        return f"{self.folder}/{self.stem(shard)}-{digest[:_DIGITS]}.parquet"


@dataclass(frozen=True)
class FileReport:
    """A task's report of the file it wrote. `size` in bytes; `tokenised`, `waited`, `ran`, `wrote` in seconds, and
    `device_busy`, which its device computed.

    `bin_number` and `part` name the shard. `content`: see `schemas.content`. `poisoned`: ids of rows that no engine
    could score. `reused`: rows whose text was scored in the committed baseline. `adopted`: an earlier attempt wrote the
    file. `distinct`: rows that the engine ran for all others; `tokens` and, with padding, `padded_tokens` of those.
    `began`: Unix time at which its engine got the first texts, `ended`: at which the file was there.
    """

    path: str
    size: int
    rows: int
    sha256: str = ""
    fingerprint: str = ""
    bin_number: int = 0
    part: int = 0
    content: str = NO_CONTENT
    poisoned: tuple[str, ...] = ()
    reused: int = 0
    adopted: bool = False
    distinct: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    precision: str = ""
    pid: int = 0
    began: float = 0.0
    ended: float = 0.0
    tokenised: float = 0.0
    waited: float = 0.0
    ran: float = 0.0
    device_busy: float = 0.0
    wrote: float = 0.0

    @property
    def name(self) -> str:
        return name_of(self.path)

    @property
    def judged(self) -> int:
        """Rows of the shard, written or not."""
        return self.rows + len(self.poisoned)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "FileReport":
        """Raises: ValueError, TypeError when `text` is no report of this version."""
        document: dict[str, Any] = {**json.loads(text)}
        # Earlier versions counted the labels here.
        document.pop("labels", None)
        return cls(**{**document, "poisoned": tuple(document["poisoned"])})


#: The rows that tasks return: a FileReport as JSON, as in a shard's sidecar.
REPORT_DDL = "report string"


def shard_name(bin_number: int, part: int) -> str:
    return f"{bin_number:05d}-{part}"


def write_sidecar(target: Target, report: FileReport) -> None:
    """Say that a file is complete: what a later attempt at the same plan need not compute again."""
    with writing(target, note := sidecar(report.path)):
        open_objects(target.table).put(note, report.to_json().encode())


def sidecar(path: str) -> str:
    return f"{path.removesuffix('.parquet')}.json"


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def shard_of(note: str) -> str:
    """The name of the shard that a sidecar is of."""
    return name_of(note).split(".")[1]


def finished(note: str, target: Target) -> FileReport | None:
    """The report in a sidecar, if it has the same fingerprint and its file has the reported size and SHA-256."""
    files = open_objects(target.table)
    try:
        report = FileReport.from_json(files.get(note).decode())
        data = files.get(report.path)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    found = target.fingerprint, len(data), hashlib.sha256(data).hexdigest()
    return report if (report.fingerprint, report.size, report.sha256) == found else None


def sidecars(target: Target) -> Iterator[ObjectInfo]:
    """Those of all attempts with the target's fingerprint. Raises: JobError."""
    for found in in_folder(target):
        if (name := name_of(found.path)).startswith(f"{target.fingerprint}.") and name.endswith(".json"):
            yield found


def own_sidecars(target: Target) -> list[str]:
    ours = f".{target.token}.{target.driver}-"
    return [found.path for found in sidecars(target) if ours in name_of(found.path)]


def in_folder(target: Target) -> Iterator[ObjectInfo]:
    """Everything beside the target's files, hidden ones too. Raises: JobError."""
    with writing(target, target.folder):
        yield from open_objects(target.table).list(target.folder)


def write_file(
    target: Target, schema: pa.Schema, batches: Iterable[pa.RecordBatch], shard: str = "rows"
) -> tuple[str, int, int, str]:
    """Write one data file, in one put; returns its path relative to the table, its bytes, its rows and its SHA-256.

    Raises: JobError when it cannot be written, for want of room for one.
    """
    # Executors inherit the rights of new files from Spark's workers, which others may have started.
    storage.keep_private()
    written, sink = 0, io.BytesIO()
    # Without page checksums most flipped bits read back as other values, silently.
    how = {"compression": "zstd", "use_dictionary": schemas.REPEATED, "write_page_checksum": True}
    with pq.ParquetWriter(sink, schema, **how) as writer:
        for batch in batches:
            writer.write_batch(batch)
            written += batch.num_rows
    data = sink.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    path = target.path(shard, digest)
    with writing(target, path):
        open_objects(target.table).put(path, data)
    return path, len(data), written, digest


def copied(table: str, report: FileReport, token: int) -> FileReport:
    """A file under a name of attempt `token`. Raises: JobError when it cannot be written."""
    plan, shard, _, rest, ending = name_of(report.path).split(".")
    name = f"{plan}.{shard}.{token}.{uuid.uuid4().hex[:8]}-{rest.rpartition('-')[2]}.{ending}"
    own = replace(report, path=f"{report.path.rpartition('/')[0]}/{name}")
    try:
        files = open_objects(table)
        files.put(own.path, files.get(report.path))
    except OSError as error:
        raise JobError(f"{table}/{own.path} could not be written: {error.strerror or error}") from error
    return own


def open_intact(place: Location) -> BinaryIO | pa.BufferReader | None:
    """A file, if it is as it was written: its name says the hash. Page checksums leave headers and the footer out.

    One whose name says none passes; see `has_hash_in_name`. None for a damaged one. Raises: OSError.
    """
    named = _NAMED.search(str(place))
    if named is None:
        return objects.open_file(place)
    data = objects.get(place)
    return pa.BufferReader(data) if hashlib.sha256(data).hexdigest().startswith(named[1]) else None


def has_hash_in_name(path: str) -> bool:
    """Whether a file's name holds its hash. The names of other tools' files, of a compacted table for one, do not."""
    return _NAMED.search(path) is not None


def read_back(place: Location, columns: Sequence[str], digest: str) -> Iterator[pa.RecordBatch]:
    """Rows of a file that an attempt wrote, its SHA-256 and every page's checksum verified. Raises: JobError naming a
    damaged file."""
    try:
        # One request, where a footer and some columns would be three.
        data = objects.get(place)
        if hashlib.sha256(data).hexdigest() != digest:
            raise JobError(f"{place} cannot be read back: it is not as it was written; score the day again")
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            yield from in_columns(file, columns)
    except (OSError, pa.ArrowException) as error:
        raise JobError(f"{place} cannot be read back: {error}; score the day again") from error


def in_columns(file: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Rows of a file in these columns, in their order. A column of the scores table, or a field of one, that the file,
    of an earlier version, does not have is null."""
    held = set(file.schema_arrow.names)
    lacking = [name for name in columns if name not in held and name in schemas.SCORES.names]
    for batch in file.iter_batches(columns=[name for name in columns if name in held]):
        nulls = [pa.nulls(batch.num_rows, schemas.SCORES.field(name).type) for name in lacking]
        whole = pa.RecordBatch.from_arrays([*batch.columns, *nulls], [*batch.schema.names, *lacking])
        asked = whole.select(list(columns))
        # The table's columns as this version has them.
        fields = [schemas.SCORES.field(it.name) if it.name in schemas.SCORES.names else it for it in asked.schema]
        yield asked.cast(pa.schema(fields))


@contextmanager
def writing(target: Target, path: str) -> Iterator[None]:
    """Raises: JobError instead of OSError, for want of room for one."""
    try:
        yield
    except OSError as error:
        raise JobError(f"{target.table}/{path} could not be written: {error.strerror or error}") from error


def as_batch(report: FileReport) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"report": [report.to_json()]})


def chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest

"""What the tables hold: schemas, and rows built from scored windows and from lines set aside."""

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batch_job.executors.scoring import Model, ScoredWindow
from shared_model.encoding import Text
from shared_model.output import OutputSpec

#: Part of the plan id: a change of what rows hold makes a committed partition out of date.
SCHEMA_VERSION = 3

#: Where a row's text came from: the day's messages, or a deferred request that the day's run answered. The second
#: partition column, so that a day's messages are scored again without a touch of the requests.
ARCHIVE, DEFERRED = SOURCES = ("archive", "deferred")

_TOP_K = pa.list_(pa.struct([("label", pa.string()), ("score", pa.float32())]))
_VECTOR = pa.list_(pa.float32())

#: What a data file of the scores table holds. `ds` and `source` are in its path: partition columns.
SCORES = pa.schema(
    [
        ("id", pa.string()),
        ("text_hash", pa.string()),
        ("label", pa.string()),
        ("score", pa.float32()),
        ("release", pa.string()),
        ("precision", pa.string()),
        # With a zone: without one, the table's protocol rises past what most readers know.
        ("scored_at", pa.timestamp("us", tz="UTC")),
        ("encoding_key", pa.binary()),
        ("tokens", pa.int32()),
        ("truncated", pa.bool_()),
        # Labels best first, or a regression's values; empty where the release makes embeddings, which are the vector.
        ("top_k", _TOP_K),
        ("vector", _VECTOR),
    ]
)

#: The same for Spark, partition columns included.
SCORES_DDL = (
    "id string, text_hash string, label string, score float, release string, precision string, scored_at timestamp, "
    "encoding_key binary, tokens int, truncated boolean, top_k array<struct<label: string, score: float>>, "
    "vector array<float>, ds string, source string"
)

#: What Spark answers of deferred texts: such rows, and how many ran together.
ANSWERS_DDL = SCORES_DDL.replace("ds string, source string", "batch_rows int")

QUARANTINE = pa.schema(
    [
        ("attempt", pa.int64()),
        ("file", pa.string()),
        ("reason", pa.string()),
        ("raw", pa.binary()),
        ("raw_bytes", pa.int64()),
    ]
)

#: The column of a row whose text was scored before: all but what is the row's own or the same for all.
STANDING = "standing"
STANDING_FIELDS = [name for name in SCORES.names if name not in ("id", "text_hash", "release")]

#: Content hashes are added up modulo this; that of no rows.
_CONTENTS, NO_CONTENT = 1 << 256, "0" * 64

#: Bytes of a quarantined line that are kept.
RAW_KEPT = 4096


def texts(rows: pa.RecordBatch) -> list[Text]:
    """What a model reads of rows with columns text and pair."""
    both = zip(rows.column("text").to_pylist(), rows.column("pair").to_pylist(), strict=True)
    return [text if pair is None else (text, pair) for text, pair in both]


def score_rows(window: ScoredWindow, model: Model) -> pa.RecordBatch:
    count = len(window.texts)
    named = bool(model.output.names)
    columns = {
        "id": window.source.column("id"),
        "text_hash": [text_hash(text) for text in window.texts],
        "label": pa.array(model.output.names).take(pa.array(window.indices[:, 0])) if named else pa.nulls(count),
        "score": window.scores[:, 0] if named else pa.nulls(count),
        "release": [model.release] * count,
        "precision": [str(model.engine.precision)] * count,
        "scored_at": [datetime.now(UTC)] * count,
        "encoding_key": [model.encoder.key(encoding) for encoding in window.encodings],
        "tokens": [encoding.tokens for encoding in window.encodings],
        "truncated": [encoding.truncated for encoding in window.encodings],
        "top_k": _nested_labels(window, model.output),
        "vector": _vectors(window, model.output),
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCORES)


def unscored(rows: pa.RecordBatch, precision: str) -> pa.RecordBatch:
    """Those rows of a unit that an engine of this precision must score."""
    if STANDING not in rows.schema.names:
        return rows
    return rows.filter(pc.invert(_stands(rows, precision))).drop_columns([STANDING])


def reused_rows(rows: pa.RecordBatch, release: str, precision: str) -> pa.RecordBatch:
    """Those rows of a unit whose text `release` has scored before at this precision."""
    if STANDING not in rows.schema.names:
        return pa.RecordBatch.from_pylist([], schema=SCORES)
    known = rows.filter(_stands(rows, precision))
    own = {"id": known.column("id"), "text_hash": known.column("text_hash"), "release": [release] * known.num_rows}
    standing = known.column(STANDING)
    scored = {name: pc.struct_field(standing, name).cast(SCORES.field(name).type) for name in STANDING_FIELDS}
    return pa.RecordBatch.from_pydict({**own, **scored}, schema=SCORES)


def _stands(rows: pa.RecordBatch, precision: str) -> pa.Array:
    """Whether each row has a standing score of a precision. What engines compile is what counts, and not what was asked
    of them: hosts without BF16 make FP32 of it, and a partition has one precision."""
    return pc.fill_null(pc.equal(pc.struct_field(rows.column(STANDING), "precision"), precision), False)


def content(rows: pa.RecordBatch) -> str:
    """A hash of what a reader would take for the same rows: (id, text hash, label, release), in whatever order."""
    columns = (rows.column(name).to_pylist() for name in ("id", "text_hash", "release", "label"))
    # The length of the id tells where it ends: an id may hold anything.
    said = (f"{len(it)}:{it}{text}{release}:{label or ''}" for it, text, release, label in zip(*columns, strict=True))
    return add_contents(hashlib.sha256(row.encode()).hexdigest() for row in said)


def add_contents(contents: Iterable[str]) -> str:
    """The hash of all rows from those of their parts."""
    return f"{sum(int(each, 16) for each in contents) % _CONTENTS:064x}"


def answer_rows(window: ScoredWindow, model: Model) -> pa.RecordBatch:
    """Score rows of deferred texts, and how many rows each ran with."""
    return score_rows(window, model).append_column("batch_rows", pa.array(window.batch_rows))


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


def text_hash(text: Text) -> str:
    return hashlib.sha256((text if isinstance(text, str) else "\0".join(text)).encode()).hexdigest()


def _nested_labels(window: ScoredWindow, output: OutputSpec) -> pa.Array:
    rows, width = window.indices.shape
    if not output.names:
        return pa.array([[]] * rows, _TOP_K)
    flat = pa.StructArray.from_arrays(
        [pa.array(output.names).take(pa.array(window.indices.ravel())), pa.array(window.scores.ravel())],
        fields=list(_TOP_K.value_type),
    )
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * width), flat)


def _vectors(window: ScoredWindow, output: OutputSpec) -> pa.Array:
    rows, width = window.scores.shape
    if output.names:
        return pa.nulls(rows, _VECTOR)
    return pa.ListArray.from_arrays(
        pa.array(np.arange(rows + 1, dtype=np.int32) * width), pa.array(window.scores.ravel())
    )

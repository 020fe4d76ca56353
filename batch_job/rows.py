"""What the tables hold: schemas, and rows built from scored windows and from lines set aside."""

import hashlib
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from batch_job.scoring import Model, ScoredWindow
from shared_model.encoding import Text
from shared_model.output import Output

#: Part of the plan id: a change of what rows hold makes a committed partition out of date.
SCHEMA_VERSION = 2

_TOP_K = pa.list_(pa.struct([("label", pa.string()), ("score", pa.float32())]))
_VECTOR = pa.list_(pa.float32())

#: What a data file of the scores table holds. `ds` is in its path: a partition column.
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

#: The same for Spark, partition column included.
SCORES_DDL = (
    "id string, text_hash string, label string, score float, release string, precision string, scored_at timestamp, "
    "encoding_key binary, tokens int, truncated boolean, top_k array<struct<label: string, score: float>>, "
    "vector array<float>, ds string"
)

QUARANTINE = pa.schema(
    [
        ("attempt", pa.int64()),
        ("file", pa.string()),
        ("reason", pa.string()),
        ("raw", pa.binary()),
        ("raw_bytes", pa.int64()),
    ]
)

#: Bytes of a quarantined line that are kept.
RAW_KEPT = 4096


def score_rows(window: ScoredWindow, model: Model) -> pa.RecordBatch:
    count = len(window.texts)
    named = bool(model.output.names)
    columns = {
        "id": window.source.column("id"),
        "text_hash": [_text_hash(text) for text in window.texts],
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


def answer_rows(window: ScoredWindow, model: Model) -> pa.RecordBatch:
    """Scores of deferred texts: the window's own columns but the texts, and what an answer holds."""
    source = window.source.drop_columns(["text", "pair"])
    columns = [
        *source.columns,
        _nested_labels(window, model.output),
        _vectors(window, model.output),
        pa.array([encoding.tokens for encoding in window.encodings], pa.int32()),
        pa.array([encoding.truncated for encoding in window.encodings], pa.bool_()),
        pa.array([str(model.engine.precision)] * len(window.texts), pa.string()),
        pa.array(window.batch_rows),
    ]
    names = [*source.schema.names, "top_k", "vector", "tokens", "truncated", "precision", "batch_rows"]
    return pa.RecordBatch.from_arrays(columns, names=names)


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


def _text_hash(text: Text) -> str:
    return hashlib.sha256((text if isinstance(text, str) else "\0".join(text)).encode()).hexdigest()


def _nested_labels(window: ScoredWindow, output: Output) -> pa.Array:
    rows, width = window.indices.shape
    if not output.names:
        return pa.array([[]] * rows, _TOP_K)
    flat = pa.StructArray.from_arrays(
        [pa.array(output.names).take(pa.array(window.indices.ravel())), pa.array(window.scores.ravel())],
        fields=list(_TOP_K.value_type),
    )
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * width), flat)


def _vectors(window: ScoredWindow, output: Output) -> pa.Array:
    rows, width = window.scores.shape
    if output.names:
        return pa.nulls(rows, _VECTOR)
    return pa.ListArray.from_arrays(
        pa.array(np.arange(rows + 1, dtype=np.int32) * width), pa.array(window.scores.ravel())
    )

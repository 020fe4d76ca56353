"""Rows of the scores table, from scored windows and from scores that were committed before."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batch_job.scoring.models import Model
from batch_job.scoring.windows import ScoredWindow
from batch_job.shards.schemas import SCORES, TOP_K, VECTOR, text_hash
from shared_model.encoding import Text

#: The column of a row whose text was scored before: all but what is the row's own or the same for all.
BASELINE = "baseline"
BASELINE_FIELDS = [name for name in SCORES.names if name not in ("id", "text_hash", "release")]


def texts(rows: pa.RecordBatch) -> list[Text]:
    """The model's texts of rows with columns text and pair."""
    both = zip(rows.column("text").to_pylist(), rows.column("pair").to_pylist(), strict=True)
    return [text if pair is None else (text, pair) for text, pair in both]


def score_rows(window: ScoredWindow, model: Model) -> pa.RecordBatch:
    count, kept = window.scores.shape
    scores, ends = pa.array(window.scores.ravel()), pa.array(np.arange(count + 1, dtype=np.int32) * kept)
    if model.output.names:
        names = pa.array(model.output.names)
        label, score = names.take(pa.array(window.indices[:, 0])), pa.array(window.scores[:, 0])
        best = [names.take(pa.array(window.indices.ravel())), scores]
        top_k = pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays(best, fields=list(TOP_K.value_type)))
        vector = pa.nulls(count, VECTOR)
    else:
        label, score, top_k = pa.nulls(count), pa.nulls(count), pa.array([[]] * count, TOP_K)
        vector = pa.ListArray.from_arrays(ends, scores)
    columns = {
        "id": window.source.column("id"),
        "text_hash": [text_hash(text) for text in window.texts],
        "label": label,
        "score": score,
        "release": [model.release] * count,
        "precision": [str(model.engine.precision)] * count,
        "scored_at": [datetime.now(UTC)] * count,
        "encoding_key": [model.encoder.key(encoding) for encoding in window.encodings],
        "tokens": [encoding.tokens for encoding in window.encodings],
        "truncated": [encoding.truncated for encoding in window.encodings],
        "top_k": top_k,
        "vector": vector,
        "abstained": pa.nulls(count, pa.bool_()) if model.output.abstain_below is None else pa.array(window.abstained),
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCORES)


def unscored(rows: pa.RecordBatch, precision: str) -> pa.RecordBatch:
    """Those rows of a shard that an engine of this precision must score."""
    if BASELINE not in rows.schema.names:
        return rows
    return rows.filter(pc.invert(_has_baseline(rows, precision))).drop_columns([BASELINE])


def reused_rows(rows: pa.RecordBatch, release: str, precision: str) -> pa.RecordBatch:
    """Those rows of a shard whose text `release` has scored before at this precision."""
    if BASELINE not in rows.schema.names:
        return pa.RecordBatch.from_pylist([], schema=SCORES)
    known = rows.filter(_has_baseline(rows, precision))
    own = {"id": known.column("id"), "text_hash": known.column("text_hash"), "release": [release] * known.num_rows}
    baseline = known.column(BASELINE)
    scored = {name: pc.struct_field(baseline, name).cast(SCORES.field(name).type) for name in BASELINE_FIELDS}
    return pa.RecordBatch.from_pydict({**own, **scored}, schema=SCORES)


def _has_baseline(rows: pa.RecordBatch, precision: str) -> pa.Array:
    """Whether each row has a baseline score at a precision. The compiled precision counts, not the requested one: hosts
    without BF16 compile FP32, and a partition has one precision."""
    return pc.fill_null(pc.equal(pc.struct_field(rows.column(BASELINE), "precision"), precision), False)

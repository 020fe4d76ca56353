"""Rows of the scores table, from scored windows and from scores that were committed before."""

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from batch_job.scoring.models import Model
from batch_job.scoring.windows import ScoredWindow
from batch_job.shards import head_columns
from batch_job.shards.schemas import SCORES, text_hash
from shared_model.encoding import Text

#: The column of a row whose text was scored before: all but what is the row's own or the same for all.
BASELINE = "baseline"
BASELINE_FIELDS = [name for name in SCORES.names if name not in ("id", "text_hash", "release")]


def texts(rows: pa.RecordBatch) -> list[Text]:
    """The model's texts of rows with columns text and pair."""
    both = zip(rows.column("text").to_pylist(), rows.column("pair").to_pylist(), strict=True)
    return [text if pair is None else (text, pair) for text, pair in both]


def score_rows(window: ScoredWindow, model: Model) -> pa.RecordBatch:
    count, source = len(window.scores), window.source
    columns = {
        "id": source.column("id"),
        # Spark has hashed the texts of a day.
        "text_hash": source.column("text_hash")
        if "text_hash" in source.schema.names
        else list(map(text_hash, window.texts)),
        "release": [model.release] * count,
        "precision": [str(model.engine.precision)] * count,
        "scored_at": [datetime.now(UTC)] * count,
        "encoding_key": [model.encoder.key(encoding) for encoding in window.encodings],
        "tokens": [encoding.tokens for encoding in window.encodings],
        "truncated": [encoding.truncated for encoding in window.encodings],
        **head_columns.encode(model.heads, window.indices, window.scores, window.abstained),
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

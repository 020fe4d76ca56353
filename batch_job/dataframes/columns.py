"""Texts, batch by batch → columns of scores, row for row: a row without scores has a reason instead."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from batch_job.inputs.messages import Reason, Unreadable, as_text, checked_texts
from batch_job.scoring import rows, windows
from batch_job.scoring.models import Model
from batch_job.scoring.options import ScoringOptions
from batch_job.scoring.windows import ScoredWindow
from batch_job.shards import head_columns
from batch_job.shards.schemas import HEAD_COLUMNS_DDL, SCORES

#: As in the scores table, and the reason why a row has no scores.
SCORE_COLUMNS = pa.schema(
    [
        *map(SCORES.field, ("label", "score", "release", "precision", "truncated")),
        *map(SCORES.field, ("top_k", "vector", "abstained", "heads")),
        ("reason", pa.string()),
    ]
)
#: The same for Spark.
SCORE_COLUMNS_DDL = (
    f"label string, score float, release string, precision string, truncated boolean, {HEAD_COLUMNS_DDL}, reason string"
)

_TEXTS = pa.schema([("text", pa.string()), ("pair", pa.string())])

#: One batch: a list of values for each text of a row, one or two.
Values = Sequence[Sequence[object]]


def score_batches(
    batches: Iterator[Values],
    model: Model,
    options: ScoringOptions,
    scored: Callable[[int, int], object] = lambda window, rows: None,
) -> Iterator[pa.RecordBatch]:
    """The columns of each batch. `scored`: as in `windows.score_windows`. Raises: JobError."""
    judged = deque[list[Reason | None]]()

    def valid() -> Iterator[pa.RecordBatch]:
        for values in batches:
            texts, reasons = _judge(values)
            judged.append(reasons)
            yield texts

    for window in windows.score_windows(valid(), rows.texts, model, options, options.poison, scored):
        yield _columns(window, judged.popleft(), model)


def values_of(column: "pa.Array | pa.ChunkedArray") -> list[object]:
    """The values of a column. Arrow does not check that text is UTF-8: what is not becomes half surrogate pairs, by
    which a row is found."""
    try:
        values: list[object] = column.to_pylist()
    except UnicodeDecodeError:
        return [as_text(raw) for raw in column.cast(pa.large_binary()).to_pylist()]
    return values


def _judge(values: Values) -> tuple[pa.RecordBatch, list[Reason | None]]:
    """The rows that a model can be given, and for every row the reason why not."""
    texts: list[list[str]] = []
    reasons: list[Reason | None] = []
    for row in zip(*values, strict=True):
        try:
            texts.append(checked_texts(row))
            reasons.append(None)
        except Unreadable as unreadable:
            reasons.append(unreadable.reason)
    pairs = [text[1] if len(text) > 1 else None for text in texts]
    return pa.RecordBatch.from_pydict({"text": [text[0] for text in texts], "pair": pairs}, schema=_TEXTS), reasons


def _columns(window: ScoredWindow, reasons: list[Reason | None], model: Model) -> pa.RecordBatch:
    """Scores where the rows are that have some, nulls elsewhere."""
    valid = np.flatnonzero([reason is None for reason in reasons])
    for place in valid[window.poisoned].tolist():
        reasons[place] = Reason.POISON
    places = np.full(len(reasons), -1)
    places[np.delete(valid, window.poisoned)] = np.arange(len(window.scores))
    taken = pa.array(places, mask=places < 0)
    truncated = pa.array([encoding.truncated for encoding in window.encodings], pa.bool_())
    heads = head_columns.encode(model.heads, window.indices, window.scores, window.abstained)
    columns = {
        **{name: column.take(taken) for name, column in {"truncated": truncated, **heads}.items()},
        "release": pa.repeat(model.release, len(reasons)),
        "precision": pa.repeat(str(model.engine.precision), len(reasons)),
        "reason": reasons,
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCORE_COLUMNS)

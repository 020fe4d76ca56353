"""Score rows as executors write them, without an engine."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport, Target, write_file
from batch_job.tables import table

NAMES = ("yes", "no", "perhaps")


def batch(
    texts: Sequence[str],
    labels: Sequence[str],
    scores: Sequence[Sequence[float]] = (),
    tokens: Sequence[int] = (),
    precision: str = "bf16",
) -> pa.RecordBatch:
    """`labels`: the best of each row. `scores`: of it and of the next, 0.6 and 0.3 by default."""
    count = len(texts)
    best = list(scores) or [(0.6, 0.3)] * count
    seconds = [next(name for name in NAMES if name != label) for label in labels]
    columns = {
        "id": [f"m{number}" for number in range(count)],
        "text_hash": [hashlib.sha256(text.encode()).hexdigest() for text in texts],
        "label": list(labels),
        "score": [both[0] for both in best],
        "release": ["small-0123456789ab"] * count,
        "precision": [precision] * count,
        "scored_at": [datetime(2026, 1, 15, 2, tzinfo=UTC)] * count,
        "encoding_key": [bytes(16)] * count,
        "tokens": list(tokens) or [3] * count,
        "truncated": [False] * count,
        "top_k": [
            [{"label": first, "score": both[0]}, {"label": second, "score": both[1]}]
            for first, second, both in zip(labels, seconds, best, strict=True)
        ],
        "vector": [None] * count,
        "abstained": [None] * count,
        "heads": [None] * count,
    }
    return pa.RecordBatch.from_pydict(columns, schema=schemas.SCORES)


def file(
    folder: Path, *batches: pa.RecordBatch, ds: str = "2026-01-14", token: int = 1, source: str = schemas.ARCHIVE
) -> FileReport:
    return FileReport(*write_file(Target(str(folder), ds, "plan", token, source=source), schemas.SCORES, batches))


def commit(folder: Path, ds: str, labels: Sequence[str], token: int = 1, **metadata: str) -> None:
    """Make rows of these labels the committed day."""
    written = file(folder, batch([f"text {number}" for number in range(len(labels))], labels), ds=ds, token=token)
    facts = {"tandem.ds": ds, "tandem.attempt": str(token), **metadata}
    table.replace_partition(folder, ds, [written], token, lambda: None, facts)

"""Schemas of the tables, and hashes of their rows."""

import hashlib
from collections.abc import Iterable

import pyarrow as pa

from shared_model.encoding import Text

#: Part of the plan id: a change of what rows hold makes a committed partition out of date.
SCHEMA_VERSION = 3

#: Where a row's text came from: the day's messages, or a deferred request that the day's run answered. The second
#: partition column, so that a day's messages are scored again without a touch of the requests.
ARCHIVE, DEFERRED = SOURCES = ("archive", "deferred")

TOP_K = pa.list_(pa.struct([("label", pa.string()), ("score", pa.float32())]))
VECTOR = pa.list_(pa.float32())
#: Name of a further head → what the columns `top_k`, `vector` and `abstained` are for the first.
HEADS = pa.map_(pa.string(), pa.struct([("top_k", TOP_K), ("vector", VECTOR), ("abstained", pa.bool_())]))

#: Columns of a data file of the scores table. `ds` and `source` are in its path: partition columns.
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
        ("top_k", TOP_K),
        ("vector", VECTOR),
        # Null where the release never abstains, and in tables of earlier versions.
        ("abstained", pa.bool_()),
        # Null where the release has one head, and in tables of earlier versions.
        ("heads", HEADS),
    ]
)

_TOP_K_DDL = "array<struct<label: string, score: float>>"
#: The columns of all heads' scores for Spark.
HEAD_COLUMNS_DDL = (
    f"top_k {_TOP_K_DDL}, vector array<float>, abstained boolean, "
    f"heads map<string, struct<top_k: {_TOP_K_DDL}, vector: array<float>, abstained: boolean>>"
)
#: All columns for Spark, partition columns included.
SCORES_DDL = (
    "id string, text_hash string, label string, score float, release string, precision string, scored_at timestamp, "
    f"encoding_key binary, tokens int, truncated boolean, {HEAD_COLUMNS_DDL}, ds string, source string"
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

#: Columns of both tables whose values come again and again, by their paths in Parquet: only these get dictionaries, as
#: those of ids, hashes and keys would hold every value once.
REPEATED = [
    *("label", "release", "precision", "scored_at", "tokens", "file", "reason", "attempt"),
    *("top_k.list.element.label", "heads.key_value.key", "heads.key_value.value.top_k.list.element.label"),
]

#: Content hashes are added up modulo this; that of no rows.
_CONTENTS, NO_CONTENT = 1 << 256, "0" * 64


def content(rows: pa.RecordBatch) -> str:
    """A hash of what a reader would take for the same rows: (id, text hash, label, release), in whatever order."""
    columns = (rows.column(name).to_pylist() for name in ("id", "text_hash", "release", "label"))
    # The length of the id tells where it ends: an id may hold anything.
    rows_as_text = (
        f"{len(it)}:{it}{text}{release}:{label or ''}" for it, text, release, label in zip(*columns, strict=True)
    )
    return _added(int.from_bytes(hashlib.sha256(row.encode()).digest()) for row in rows_as_text)


def add_contents(contents: Iterable[str]) -> str:
    """The hash of all rows from those of their parts."""
    return _added(int(each, 16) for each in contents)


def _added(hashes: Iterable[int]) -> str:
    return f"{sum(hashes) % _CONTENTS:064x}"


def text_hash(text: Text) -> str:
    return hashlib.sha256((text if isinstance(text, str) else "\0".join(text)).encode()).hexdigest()

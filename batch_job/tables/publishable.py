"""A committed partition as it is published: its texts, those that came most often first, and the messages of each.

Of each row memory holds 16 bytes and a few numbers; whole rows and ids only of texts that can be published at all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from numpy.typing import NDArray

from batch_job.shards.schemas import ARCHIVE
from batch_job.tables import table
from shared_model.errors import JobError

_KEY = "encoding_key"
_SCORES = (_KEY, "tokens", "truncated", "top_k", "vector", "abstained", "heads")
_BATCH = 10_000


@dataclass(frozen=True)
class Messages:
    """`shared_model.published.message_ids.MessageIds` of a partition. `counts` and `keys`: messages and encoding key of
    each text by rank; `ids` and `ranks`: of each message that, and the rank of its text."""

    counts: NDArray[np.int64]
    ids: pa.ChunkedArray
    ranks: NDArray[np.int32]
    keys: pa.ChunkedArray

    def times(self, rank: int) -> int:
        return int(self.counts[rank])

    def entries(self, ranks: int) -> Iterator[tuple[str, bytes]]:
        published = np.flatnonzero(self.ranks < ranks)
        for start in range(0, len(published), _BATCH):
            rows = published[start : start + _BATCH]
            keys = self.keys.take(pa.array(self.ranks[rows]))
            yield from zip(self.ids.take(pa.array(rows)).to_pylist(), keys.to_pylist(), strict=True)


@dataclass(frozen=True)
class Partition:
    """`texts` that the model can tell apart, of `lines` messages. `rows`: one for each of the first texts by rank;
    `messages`: of those."""

    release: str
    precision: str
    texts: int
    lines: int
    rows: pa.Table
    messages: Messages


class Ranking(NamedTuple):
    """Texts by rank, and the rank of each row's. `counts`: rows of each; `firsts`: the first row of each."""

    counts: NDArray[np.int64]
    firsts: NDArray[np.int64]
    ranks: NDArray[np.int32]


def read(delta: DeltaTable, ds: str, most: int) -> Partition | None:
    """The archive's rows of a day, None without any. `most`: texts of which rows and ids are kept.

    Raises: JobError for scores of several releases or precisions, and as `table.read_files`.
    """
    keys, (release, precision) = _keys(delta, ds)
    if not len(keys):
        return None
    counts, firsts, ranks = rank(keys)
    kept = min(most, len(counts))
    first = np.zeros(len(ranks), bool)
    first[firsts[:kept]] = True
    rows, ids = _rows_and_ids(delta, ds, first, ranks < kept)
    in_order = rows.take(pa.array(np.argsort(ranks[first])))
    messages = Messages(counts[:kept], ids, ranks[ranks < kept], in_order.column(_KEY))
    return Partition(release, precision, len(counts), len(ranks), in_order, messages)


def rank(keys: NDArray[np.uint64]) -> Ranking:
    """Rank texts by how often they come, then by their first row. `keys`: of each row's text, as two numbers."""
    # Rows of one text together, in their order.
    order = np.lexsort(keys.T)
    differs = (keys[order[1:]] != keys[order[:-1]]).any(axis=1)
    starts = np.flatnonzero(np.r_[True, differs])
    counts, firsts = np.diff(np.r_[starts, len(order)]), order[starts]
    by_rank = np.lexsort((firsts, -counts))
    rank_of, ranks = np.empty(len(starts), np.int32), np.empty(len(order), np.int32)
    rank_of[by_rank] = np.arange(len(starts))
    ranks[order] = np.repeat(rank_of, counts)
    return Ranking(counts[by_rank], firsts[by_rank], ranks)


def _keys(delta: DeltaTable, ds: str) -> tuple[NDArray[np.uint64], list[str]]:
    """The keys of all rows, and their release and precision."""
    values: dict[str, set[str]] = {"release": set(), "precision": set()}
    keys = [np.empty((0, 2), np.uint64)]
    for batch in table.read_files(delta, ds, (*values, _KEY), ARCHIVE):
        for name, found in values.items():
            found.update(batch.column(name).unique().to_pylist())
        keys.append(np.frombuffer(b"".join(batch.column(_KEY).to_pylist()), np.uint64).reshape(-1, 2))
    for name, found in values.items():
        if len(found) > 1:
            raise JobError(f"ds={ds} holds scores of {name} {' and '.join(sorted(found))}; score it again")
    return np.concatenate(keys), ["".join(found) for found in values.values()]


def _rows_and_ids(
    delta: DeltaTable, ds: str, first: NDArray[np.bool_], kept: NDArray[np.bool_]
) -> tuple[pa.Table, pa.ChunkedArray]:
    """The rows of `first`, and the ids of those of `kept`, both masks of all rows."""
    rows, ids, at = [], [], 0
    for batch in table.read_files(delta, ds, ("id", *_SCORES), ARCHIVE):
        here = slice(at, at := at + batch.num_rows)
        ids.append(batch.column("id").filter(pa.array(kept[here])))
        rows.append(batch.select(list(_SCORES)).filter(pa.array(first[here])))
    return pa.Table.from_batches(rows), pa.chunked_array(ids)

"""The `publish` step: the committed partition → Redis, as an epoch the online service answers from. No JVM."""

import argparse
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import redis

from batch_job import lookup, run_record
from batch_job.checks import history
from batch_job.identity import Tables, model_of
from batch_job.inputs.delta import find_table
from batch_job.progress import watched
from batch_job.reporting import plain_text
from batch_job.run_record import Publication, RunRecord, State
from batch_job.settings import NightlySettings
from batch_job.shards import head_columns
from batch_job.shards.head_columns import HeadColumns
from batch_job.shards.schemas import ARCHIVE
from batch_job.steps import figures
from batch_job.tables import publishable, table
from batch_job.tables.fence import connect
from batch_job.tables.publishable import Partition
from protos.scoring.v1.storage_pb2 import PublishedHead, PublishedScore
from shared_model import settings
from shared_model.errors import JobError
from shared_model.heads import Heads
from shared_model.objects import Location
from shared_model.output import OutputSpec
from shared_model.published import epochs
from shared_model.published.epochs import Epoch, Outcome
from shared_model.published.publish import most_keys, publish
from shared_model.redis_store.server import RedisServer
from shared_model.releases.store import Store
from shared_model.settings import StateSettings

_BATCH = 10_000

_NO_ROWS = "the day holds no rows"
_NEWER_DAY = "a newer day, {} of {}, is committed; `publish --force` makes this one live all the same"
_OLDER = "a newer one, {}, is; `publish --force` makes this one live all the same"
_BARRED = "a person went back from it, or from a newer one; score the day again, or `publish --force`"


def run(args: argparse.Namespace, state: StateSettings) -> None:
    path, nightly = lookup.find(args.record, args.ds, state), settings.load(NightlySettings)
    with RedisServer(state) as server, connect(server.url) as client:
        done = publish_run(state, nightly, client, lookup.open_for(path, args.ds), args.force)
        run_record.write(path, done)
        figures.tell_state(client, done)
    print(f"ds={done.ds} of {done.input.identity}: {plain_text.publication(done)}")


def publish_run(
    state: StateSettings, nightly: NightlySettings, client: "redis.Redis", run: RunRecord, force: bool = False
) -> RunRecord:
    """Publish what the table holds for the run's day. Publishing again what is live changes nothing.

    `force`: a person wants this day to answer, though a newer one is committed. Without, an older day stays in the
    table only, whatever Redis holds: it may have lost its memory, or a release may be new to it.
    Raises: JobError when there is nothing to publish, StoreUnavailable when Redis fails.
    """
    if run.scoring is None:
        raise JobError(
            f"run {run.run_id} of ds={run.ds} is {run.state}, so there is nothing to publish; score it first"
        )
    scores, room = Tables.for_input(state, run.input.identity).scores, nightly.publish_megabytes * 1e6
    found = committed_partition(scores, run.ds, room)
    if found is None:
        return _with(run, Publication("", 0, moved=False, live=False, why=_NO_ROWS))
    epoch, partition = found
    publication = _publish(state, nightly, client, epoch, partition, run.input.identity, force)
    if publication.moved and not model_of(run.input.identity):
        # The metrics are those of the default model's runs.
        figures.tell_published(client, run, epoch)
    return _with(run, publication)


def _with(run: RunRecord, publication: Publication) -> RunRecord:
    """The run with its publication. A run whose epoch is not live is only committed."""
    committed = State.UNCHANGED if run.state is State.UNCHANGED else State.COMMITTED
    return replace(run, state=State.PUBLISHED if publication.live else committed, publication=publication)


def _publish(
    state: StateSettings,
    nightly: NightlySettings,
    client: "redis.Redis",
    epoch: Epoch,
    partition: Partition,
    identity: str,
    force: bool,
) -> Publication:
    texts, scores_table = partition.texts, Tables.for_input(state, identity).scores
    live_keys = epochs.live_keys(client, epoch)
    if live_keys is not None:
        done = Publication(epoch.name, live_keys, moved=False, live=True)
    elif not force and (newer := history.newer_day(scores_table, epoch.ds, identity)):
        return Publication(epoch.name, 0, moved=False, live=False, why=_NEWER_DAY.format(newer, identity))
    else:
        scores = scores_of(partition.rows, Store.from_settings(state).open(epoch.release).heads)
        room = nightly.publish_megabytes * 1e6
        # Closed, because publishing stops taking them where the room ends.
        with closing(watched("publishing", "keys", texts, scores)) as taken:
            made = publish(client, epoch, taken, room, nightly.publish_keep_seconds, force, partition.messages)
        if not made.outcome.live:
            why = _BARRED if made.outcome is Outcome.BARRED else _OLDER.format(_live(state, client, epoch.release))
            return Publication(epoch.name, 0, moved=False, live=False, why=why)
        moved = made.outcome is Outcome.MOVED
        done = Publication(epoch.name, made.keys, moved=moved, live=True, bytes=made.bytes, bound=int(room))
    covered = float(partition.messages.counts[: done.keys].sum() / partition.lines)
    return replace(done, left_out=texts - done.keys, covered=round(covered, 4))


def _live(state: StateSettings, client: "redis.Redis", release: str) -> str:
    """Which day of which input is live, in words. Inputs share a release's epochs: a text has one score."""
    epoch = epochs.live(client, release)
    of = lookup.identity_of(state, epoch, release)
    return f"epoch {epoch}{f', of {of}' if of else ''}"


def committed_partition(folder: Location, ds: str, room: float = float("inf")) -> tuple[Epoch, Partition] | None:
    """The archive's rows and their epoch, None without any. Rows of deferred requests are left out: they may pin other
    releases. `room`: bytes that they may take in Redis.

    Raises: JobError when the day was never committed, or the table cannot be read.
    """
    delta = find_table(folder)
    if delta is None or (committed := table.committed(delta, ds)) is None:
        raise JobError(f"{folder} holds no ds={ds}; score it first")
    table.warn_unchecked(delta, ds, ARCHIVE)
    found = publishable.read(delta, ds, most_keys(room))
    return (Epoch(found.release, found.precision, ds, committed.token), found) if found else None


def scores_of(rows: pa.Table, heads: Heads) -> Iterator[tuple[bytes, PublishedScore]]:
    """Encoding key and score of each row, in their order."""
    for batch in rows.to_batches(max_chunksize=_BATCH):
        columns = (batch.column(name).to_pylist() for name in ("encoding_key", "tokens", "truncated"))
        parts = zip(heads.specs, head_columns.decode(batch, heads), strict=True)
        answers = zip(*(_answers(spec.output, found) for spec, found in parts), strict=True)
        for key, tokens, truncated, (own, *others) in zip(*columns, answers, strict=True):
            yield (
                key,
                PublishedScore(
                    labels=own.labels,
                    scores=own.scores,
                    tokens=tokens,
                    truncated=truncated,
                    abstained=own.abstained,
                    heads=others,
                ),
            )


def _answers(output: OutputSpec, found: HeadColumns) -> Iterator[PublishedHead]:
    """One head's answer in each row."""
    best = found.top_k.flatten()
    labels = pc.index_in(pc.struct_field(best, "label"), value_set=pa.array(output.names, pa.string())).to_pylist()
    scores = pc.struct_field(best, "score").to_pylist()
    # Each row's labels begin and end at these places among those of the batch.
    lengths = pc.list_value_length(found.top_k).to_numpy(zero_copy_only=False)
    spans = pairwise([0, *np.cumsum(lengths).tolist()])
    rows = zip(found.vector.to_pylist(), found.abstained.to_pylist(), spans, strict=True)
    for values, abstained, (start, end) in rows:
        yield PublishedHead(labels=labels[start:end], scores=values or scores[start:end], abstained=bool(abstained))

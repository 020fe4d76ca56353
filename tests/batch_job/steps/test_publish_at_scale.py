"""A million keys from the committed table to Redis, in the time a night has for them."""

import hashlib
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import redis

from batch_job.run_record import RunRecord, Scoring, State
from batch_job.settings import NightlySettings
from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport, Target, write_file
from batch_job.steps import publish
from batch_job.tables import table
from shared_model.published import epochs
from shared_model.releases.store import Release
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, message, planned, write_day

#: Its 77 labels make rows of the size that a night has.
pytestmark = pytest.mark.default_release

ROWS, KEYS = 1_200_000, 1_000_000
_CHUNK = 50_000


def chunk(release: Release, start: int) -> pa.RecordBatch:
    """Rows as a scored partition has them; every sixth text is one that came before."""
    numbers = np.arange(start, start + _CHUNK) % KEYS
    labels = [release.labels[number] for number in range(77)]
    top = [{"label": labels[rank], "score": 0.5 / (rank + 1)} for rank in range(5)]
    further = [
        (head.name, {"top_k": [{"label": head.output.names[0], "score": 0.5}]}) for head in release.heads.specs[1:]
    ]
    columns = {
        "id": [f"m{number}" for number in range(start, start + _CHUNK)],
        "text_hash": ["0" * 64] * _CHUNK,
        "label": [labels[0]] * _CHUNK,
        "score": [0.5] * _CHUNK,
        "release": [release.id] * _CHUNK,
        "precision": ["bf16"] * _CHUNK,
        "scored_at": [datetime.now(UTC)] * _CHUNK,
        "encoding_key": [hashlib.blake2b(number.tobytes(), digest_size=16).digest() for number in numbers],
        "tokens": [12] * _CHUNK,
        "truncated": [False] * _CHUNK,
        "top_k": [top] * _CHUNK,
        "vector": [None] * _CHUNK,
        "abstained": [None] * _CHUNK,
        "heads": [further] * _CHUNK,
    }
    return pa.RecordBatch.from_pydict(columns, schema=schemas.SCORES)


@pytest.fixture
def million(state: StateSettings, client: "redis.Redis", release: Release) -> RunRecord:
    """A run that committed 1.2 million rows of a million texts."""
    write_day(state, [message(0, "x")])
    folder: Path = state.scores_table
    batches = (chunk(release, start) for start in range(0, ROWS, _CHUNK))
    file = FileReport(*write_file(Target(str(folder), DAY, "plan", 1), schemas.SCORES, batches))
    version = table.replace_partition(folder, DAY, [file], 1, lambda: None, {})
    run = planned(state, client)
    scoring = Scoring(1, "plan", version, ROWS, {})
    return RunRecord(**{**run.__dict__, "state": State.COMMITTED, "token": 1, "scoring": scoring})


@pytest.mark.proof
def test_a_million_keys_are_published_within_a_minute(
    million: RunRecord, state: StateSettings, client: "redis.Redis", release: Release
) -> None:
    started = time.perf_counter()
    done = publish.publish_run(state, NightlySettings(), client, million).publication
    took = time.perf_counter() - started
    print(f"{KEYS:,} keys in {took:.1f} s")  # noqa: T201
    assert done is not None
    assert (done.keys, done.moved, done.left_out, done.covered) == (KEYS, True, 0, 1.0)
    assert epochs.whole(client, release.id, f"{DAY}.1") == KEYS
    held = epochs.keys_of(release.id, f"{DAY}.1")
    assert client.exists(*held) == len(held)
    assert sum(client.memory_usage(name) for name in held) <= 512e6
    assert took <= 60

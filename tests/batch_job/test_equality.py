"""The committed rows of the demo's archive equal the engine's results outside Spark, row by row."""

import contextlib
import hashlib
import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import redis
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from batch_job import read_scores
from batch_job.attempt import open_attempt
from batch_job.identity import Tables
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import NightlySettings
from batch_job.tables.fence import Fence
from shared_model import demo_messages
from shared_model.encoding import Bucketing, coarse_bucket, collate, fine_bucket, plan_batches
from shared_model.engine import Engine
from shared_model.releases.store import Release
from shared_model.settings import StateSettings
from shared_model.types import Device, Precision
from tests.batch_job.conftest import planned

pytestmark = pytest.mark.default_release

#: Messages of the demo's archive in every run of the suite; `make proof` takes all of them.
FEW, ALL = 400, 20_000
#: How far a probability may differ in another batch composition, on the same ladder of widths.
TAU = 1e-3
#: How far it may differ from a lane's at the same precision: a lane pads to a ladder of its own, and at another width a
#: CPU rounds otherwise. Seen in BF16: 1.4e-2; 99 % of the texts differ by less than 3e-3.
TAU_OF_LANES, SHARE_WITHIN = 2e-2, (0.98, 5e-3)


def texts_of(state: StateSettings) -> dict[str, str]:
    """id → text, read without any of the nightly run's code."""
    found: dict[str, str] = {}
    for path in sorted(state.messages_dir.glob("ds=*/*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            if line not in demo_messages.DAMAGED_LINES:
                record = json.loads(line)
                found[record["id"]] = record["text"]
    return found


def scores_outside_spark(release: Release, engine: Engine, texts: list[str], widths: Bucketing) -> NDArray[np.float32]:
    """Probabilities of every text, in batches of another size and other neighbours than the run's."""
    encoder = release.encoder()
    scores = np.empty((len(texts), len(release.labels)), np.float32)
    for start in range(0, len(texts), 1_000):
        encodings = encoder.encode_many(texts[start : start + 1_000])
        for batch in plan_batches([each.tokens for each in encodings], 24, 4096, widths):
            raw = engine.score(collate([encodings[row] for row in batch], widths))
            scores[[start + row for row in batch]] = release.heads.split(release.heads.scores(raw))[0]
    return scores


def differ(
    labels: NDArray[np.int64], scores: NDArray[np.float64], expected: NDArray[np.float32], tau: float
) -> NDArray[np.float64]:
    """How far each row's score is from what is expected: nowhere more than `tau`, and the label differs only where the
    margin is under twice that."""
    best = np.sort(expected, axis=1)[:, -2:]
    clear = best[:, 1] - best[:, 0] >= 2 * tau
    assert np.flatnonzero(clear & (labels != expected.argmax(axis=1))).tolist() == []
    apart = np.abs(scores - best[:, 1])
    assert apart.max() <= tau
    return apart


@pytest.mark.parametrize("messages", [FEW, pytest.param(ALL, marks=pytest.mark.proof)])
def test_the_rows_equal_the_engine_outside_spark(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    release: Release,
    messages: int,
) -> None:
    days = demo_messages.write_archive(state.messages_dir, messages)
    began, settings = datetime.now(UTC), NightlySettings(quarantine_share=1.0)
    for day in days:
        run = planned(state, client, str(day))
        fence = Fence.take(client, run.ds, -1)
        with open_attempt(spark, run, options, Tables.for_input(state), fence, settings) as attempt:
            done = attempt.commit(attempt.write(), {})
        assert done.rows == messages // len(days)
        assert sum(done.quarantined.values()) == len(demo_messages.DAMAGED_LINES)

    rows = {row["id"]: row for row in read_scores(spark, state.scores_table).collect()}
    texts = texts_of(state)
    assert rows.keys() == texts.keys()
    assert len(rows) == messages
    labels = np.array([release.labels.index(rows[message_id]["label"]) for message_id in texts])
    scores = np.array([rows[message_id]["score"] for message_id in texts])
    every = list(texts.values())
    with contextlib.closing(release.engine(Precision.BF16, Device.CPU, threads=2)) as engine:
        fine, coarse = (scores_outside_spark(release, engine, every, it) for it in (fine_bucket, coarse_bucket))
    differ(labels, scores, fine, TAU)
    apart = differ(labels, scores, coarse, TAU_OF_LANES)
    share, within = SHARE_WITHIN
    assert (apart <= within).mean() >= share
    for message_id, text in texts.items():
        assert rows[message_id]["text_hash"] == hashlib.sha256(text.encode()).hexdigest()
    assert {row["release"] for row in rows.values()} == {release.id}
    now = datetime.now(UTC) + timedelta(seconds=1)
    assert all(began <= row["scored_at"].astimezone(UTC) <= now for row in rows.values())

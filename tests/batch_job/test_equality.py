"""What the nightly run commits is what the engine gives outside Spark, row by row, for the demo's archive."""

import hashlib
import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import redis
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from batch_job import pipeline, read_scores
from batch_job.fence import Fence
from batch_job.pipeline import Tables
from batch_job.scoring import ScoringOptions
from shared_model import demo_messages
from shared_model.encoding import collate, plan_batches
from shared_model.releases.store import Release
from shared_model.settings import StateSettings
from shared_model.types import Device
from tests.batch_job.conftest import planned

#: Messages of the demo's archive in every run of the suite; `make proof` takes all of them.
FEW, ALL = 4_000, 20_000
#: How far a probability may differ in another batch composition.
TAU = 1e-3


def texts_of(state: StateSettings) -> dict[str, str]:
    """id → text, read without any of the nightly run's code."""
    found: dict[str, str] = {}
    for path in sorted(state.messages_dir.glob("ds=*/*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            if line not in demo_messages.DAMAGED_LINES:
                record = json.loads(line)
                found[record["id"]] = record["text"]
    return found


def scores_outside_spark(release: Release, texts: list[str]) -> NDArray[np.float32]:
    """Probabilities of every text, in batches of another size and other neighbours than the run's."""
    encoder, engine = release.encoder(), release.half_precision_engine(Device.CPU, threads=2)
    scores = np.empty((len(texts), len(release.labels)), np.float32)
    for start in range(0, len(texts), 1_000):
        encodings = encoder.encode_many(texts[start : start + 1_000])
        for batch in plan_batches([each.tokens for each in encodings], max_rows=24, token_budget=4096):
            raw = engine.score(collate([encodings[row] for row in batch]))
            scores[[start + row for row in batch]] = release.output.scores(raw)
    engine.close()
    return scores


@pytest.mark.timeout(600)
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
    began = datetime.now(UTC)
    for day in days:
        run = planned(state, client, str(day))
        fence = Fence.take(client, run.ds, -1)
        with pipeline.supervised(spark, fence):
            done = pipeline.score_partition(spark, run, options, Tables.of(state), fence, task_rows=16_384)
        assert done.rows == messages // len(days)
        assert sum(done.quarantined.values()) == len(demo_messages.DAMAGED_LINES)

    rows = {row["id"]: row for row in read_scores(spark, state.scores_table).collect()}
    texts = texts_of(state)
    assert rows.keys() == texts.keys()
    assert len(rows) == messages
    expected = scores_outside_spark(release, list(texts.values()))
    best = np.sort(expected, axis=1)[:, -2:]
    wrong = []
    for number, (message_id, text) in enumerate(texts.items()):
        row, clear = rows[message_id], best[number, 1] - best[number, 0] >= 2 * TAU
        same_label = row["label"] == release.labels[int(expected[number].argmax())]
        if (clear and not same_label) or abs(row["score"] - best[number, 1]) > TAU:
            wrong.append((message_id, row["label"], row["score"], float(best[number, 1])))
        assert row["text_hash"] == hashlib.sha256(text.encode()).hexdigest()
    assert wrong == []
    assert {row["release"] for row in rows.values()} == {release.id}
    now = datetime.now(UTC) + timedelta(seconds=1)
    assert all(began <= row["scored_at"].astimezone(UTC) <= now for row in rows.values())

"""Nightly rows abstain as the online service does, and publishing carries it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from batch_job.deferred import draining
from batch_job.scoring import rows
from batch_job.scoring.batching import Buckets
from batch_job.scoring.ceilings import Ceilings
from batch_job.scoring.runner import Job, Runner
from batch_job.steps.publish import scores_of
from shared_model.heads import Heads
from shared_model.output import OutputKind, OutputSpec
from tests.batch_job.scoring.test_runner import Engine, encodings, raw
from tests.batch_job.shards import written

SINGLE = OutputSpec(OutputKind.SINGLE_LABEL, ("a", "b", "c"), 3, temperature=0.5, abstain_below=0.7)
MULTI = OutputSpec(OutputKind.MULTI_LABEL, ("a", "b", "c"), 3, temperature=0.5, abstain_below=0.6)
LENGTHS = [5] * 20
WHERE = ("r-1", "cpu")


@pytest.mark.parametrize("output", [SINGLE, MULTI], ids=lambda it: it.kind)
def test_rows_abstain_by_all_their_scores_at_the_temperature(output: OutputSpec) -> None:
    buckets = Buckets(WHERE, 64, 2048, few_shapes=True, ceilings=Ceilings())
    runner = Runner(WHERE, Engine(set()), Heads.of(output), 0, buckets)  # type: ignore[arg-type]
    [job] = runner.run([(Job(len(LENGTHS), Heads.of(output)), encodings(LENGTHS))])
    ran = job.outcomes
    scores = output.scores(raw(np.arange(len(LENGTHS)) + 2))
    expected = output.abstained(scores)
    assert set(expected) == {True, False}
    assert (ran.abstained[:, 0] == expected).all()
    np.testing.assert_array_equal(ran.scores[:, 0], scores.max(axis=1))
    assert column(output, ran) == expected.tolist()
    assert column(replace(output, abstain_below=None), ran) == [None] * len(LENGTHS)


def column(output: OutputSpec, ran: Any) -> list[bool | None]:
    """As a shard keeps it."""
    asked = encodings(LENGTHS)
    window = SimpleNamespace(
        scores=ran.scores,
        indices=ran.indices,
        abstained=ran.abstained,
        texts=[str(number) for number in range(len(asked))],
        encodings=asked,
        source=pa.table({"id": [str(number) for number in range(len(asked))]}).to_batches()[0],
    )
    model = SimpleNamespace(
        release="r-1",
        heads=Heads.of(output),
        engine=SimpleNamespace(precision="int8"),
        encoder=SimpleNamespace(key=lambda encoding: b"key"),
    )
    return rows.score_rows(window, model).column("abstained").to_pylist()  # type: ignore[arg-type, no-any-return]


def test_published_and_drained_answers_abstain_as_their_rows_do() -> None:
    batch = written.batch(["x", "y", "z"], ["yes", "no", "yes"])
    place = batch.schema.get_field_index("abstained")
    batch = batch.set_column(place, batch.schema.field(place), pa.array([True, False, None]))
    heads = Heads.of(OutputSpec(OutputKind.SINGLE_LABEL, written.NAMES, 3))
    published = [score.abstained for _, score in scores_of(pa.Table.from_batches([batch]), heads)]
    assert published == [True, False, False]
    item = SimpleNamespace(request_id="one", work=SimpleNamespace(request=SimpleNamespace(top_k=1), accepted_at_ms=0))
    drained = draining._response(item, batch.to_pylist(), heads)  # type: ignore[arg-type]
    assert [result.abstained for result in drained.results] == published

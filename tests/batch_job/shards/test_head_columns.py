"""Scores of several heads, from raw outputs to a file of the table and back, and on to a published score."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batch_job.checks import agreement
from batch_job.run_record import Agreement
from batch_job.shards import head_columns, schemas
from batch_job.steps import publish
from shared_model.heads import Heads, HeadSpec
from shared_model.output import OutputKind, OutputSpec
from shared_model.types import TOP_K
from tests.shared_model.head_strategies import a_seed, heads_of_any_kind

INTENT = OutputSpec(OutputKind.SINGLE_LABEL, ("a", "b"), 2)
MOOD = HeadSpec("mood", OutputSpec(OutputKind.MULTI_LABEL, ("glad", "sad"), 2))
TWO = Heads.of(INTENT, "intent", [MOOD])


def written(heads: Heads, scores: np.ndarray) -> pa.Table:
    """The rows' columns, as they are read back from a file."""
    count = len(scores)
    columns = {
        **head_columns.encode(heads, *heads.best(scores, TOP_K), heads.abstained(scores)),
        "encoding_key": [str(number).encode() for number in range(count)],
        "tokens": [3] * count,
        "truncated": [False] * count,
    }
    schema = pa.schema([schemas.SCORES.field(name) for name in columns])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=schema), sink)
    return pq.read_table(pa.BufferReader(sink.getvalue()))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(heads_of_any_kind(), a_seed(), st.integers(1, 4))
def test_each_head_is_read_back_as_it_was_scored_and_published_as_that(heads: Heads, seed: int, rows: int) -> None:
    scores = heads.scores(np.random.default_rng(seed).normal(0, 3, (rows, heads.width)).astype(np.float32))
    found = written(heads, scores)
    published = [score for _, score in publish.scores_of(found, heads)]
    stored = zip(heads.specs, heads.split(scores), head_columns.decode(found, heads), strict=True)
    for place, (spec, part, (top_k, vector, abstained)) in enumerate(stored):
        indices, best = spec.output.best(part, TOP_K)
        for row in range(rows):
            said = published[row] if place == 0 else published[row].heads[place - 1]
            assert list(said.scores) == best[row].tolist()
            assert said.abstained == bool(abstained[row].as_py()) == spec.output.abstained(part)[row]
            assert abstained[row].is_valid == spec.output.abstains
            if spec.output.names:
                names = [spec.output.names[index] for index in indices[row]]
                assert [it["label"] for it in top_k[row].as_py()] == names
                assert [it["score"] for it in top_k[row].as_py()] == best[row].tolist()
                assert (list(said.labels), vector[row].as_py()) == (indices[row].tolist(), None)
            else:
                assert (list(said.labels), top_k[row].as_py()) == ([], [])
                assert vector[row].as_py() == best[row].tolist()
    assert (found.column("heads").null_count == rows) == (len(heads.specs) == 1)
    (batch,) = found.to_batches()
    assert sum(len(it) for it in head_columns.numbers(batch)) == rows * heads.kept(TOP_K)[-1].stop


@pytest.mark.parametrize("column", [1, 3])
def test_a_score_of_any_head_that_is_no_number_is_counted(column: int, tmp_path: Path) -> None:
    scores = np.full((2, 4), 0.25, np.float32)
    scores[0, column] = np.nan
    (batch,) = written(TWO, scores).to_batches()
    assert sum(int(np.isnan(it.to_numpy(zero_copy_only=False)).sum()) for it in head_columns.numbers(batch)) == 1


def compared(mood: list[tuple[float, float]]) -> Agreement:
    """With half precision that is clear of everything: 500 texts, INT8 gives these moods and else the same."""
    texts = pa.array([str(number) for number in range(len(mood))])
    half = np.tile(np.array([0.9, 0.1, 0.9, 0.1], np.float32), (len(mood), 1))
    int8 = half.copy()
    int8[:, 2:] = mood
    tables = [written(TWO, scores).append_column("text_hash", texts) for scores in (half, int8)]
    return agreement.compare(*tables, TWO)


def test_agreement_is_that_of_the_head_that_agrees_least() -> None:
    same, other = (0.9, 0.1), (0.1, 0.9)
    assert compared([same] * 500) == Agreement(500, 500, 500, 500, "intent")
    assert compared([same] * 450 + [other] * 50) == Agreement(500, 450, 500, 450, "mood")

"""Rows of each kind of output, from engine to epoch."""

import random
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from batch_job.scoring import rows, windows
from batch_job.scoring.models import Model
from batch_job.scoring.options import ScoringOptions
from batch_job.shards import schemas
from batch_job.steps import publish
from shared_model.encoding import collate
from shared_model.heads import Heads
from shared_model.output import OutputKind, OutputSpec
from shared_model.releases.store import Release
from shared_model.types import TOP_K, Device, Precision

TEXTS = ["where is my card", "what is the rate today", "thank you"]


@pytest.fixture
def model(release: Release) -> Iterator[Model]:
    engine = release.engine(Precision.BF16, Device.CPU, threads=1)
    yield Model(release.id, release.heads, release.encoder(), engine)
    engine.close()


def scored(model: Model, options: ScoringOptions, heads: Heads) -> pa.RecordBatch:
    source = pa.record_batch({"id": [str(n) for n in range(len(TEXTS))], "text": TEXTS})
    meant = Model(model.release, heads, model.encoder, model.engine)
    [window] = windows.score_windows(iter([source]), lambda batch: batch.column("text").to_pylist(), meant, options)
    return rows.score_rows(window, meant)


def raw_outputs(model: Model) -> NDArray[np.float32]:
    encodings = [model.encoder.encode(text) for text in TEXTS]
    return np.concatenate([model.engine.score(collate([encoding])) for encoding in encodings])


def test_labels_come_best_first(model: Model, options: ScoringOptions) -> None:
    batch = scored(model, options, model.heads)
    expected = model.heads.split(model.heads.scores(raw_outputs(model)))[0]
    for row, scores in zip(batch.to_pylist(), expected, strict=True):
        order = np.argsort(-scores, kind="stable")[:TOP_K]
        assert [best["label"] for best in row["top_k"]] == [model.output.names[index] for index in order]
        assert (row["label"], row["vector"]) == (row["top_k"][0]["label"], None)
        assert row["score"] == row["top_k"][0]["score"] == pytest.approx(scores.max(), abs=1e-3)


def test_values_of_a_regression_come_whole_and_in_order(model: Model, options: ScoringOptions) -> None:
    names = tuple(f"value{n}" for n in range(model.heads.width))
    batch = scored(model, options, Heads.of(OutputSpec(OutputKind.REGRESSION, names, len(names))))
    for row, values in zip(batch.to_pylist(), raw_outputs(model), strict=True):
        assert [best["label"] for best in row["top_k"]] == list(names)
        np.testing.assert_allclose([best["score"] for best in row["top_k"]], values, atol=0.05)
        assert (row["label"], row["vector"]) == ("value0", None)


def test_an_embedding_is_a_vector_without_labels_and_is_published_as_one(model: Model, options: ScoringOptions) -> None:
    output = OutputSpec(OutputKind.EMBEDDING, (), model.heads.width)
    batch = scored(model, options, Heads.of(output))
    published = dict(publish.scores_of(pa.Table.from_batches([batch]), Heads.of(output)))
    for row, values in zip(batch.to_pylist(), raw_outputs(model), strict=True):
        assert (row["label"], row["score"], row["top_k"]) == (None, None, [])
        np.testing.assert_allclose(row["vector"], values, atol=0.05)
        kept = published[row["encoding_key"]]
        assert (list(kept.labels), list(kept.scores)) == ([], row["vector"])


Said = list[tuple[str, str, str | None]]
#: Id, text hash and label of rows.
ROW = st.tuples(st.text(), st.sampled_from(["0" * 64, "1" * 64]), st.none() | st.text(max_size=3))
SAID = st.lists(ROW, max_size=20)


def content(said: Said, release: str = "r-1") -> str:
    names = ("id", "text_hash", "label")
    columns = {name: pa.array([row[place] for row in said], pa.string()) for place, name in enumerate(names)}
    return schemas.content(pa.record_batch({**columns, "release": pa.array([release] * len(said), pa.string())}))


@given(SAID, st.integers(0, 20), st.randoms())
def test_the_content_hash_adds_up_in_any_order(said: Said, middle: int, rng: random.Random) -> None:
    shuffled = rng.sample(said, len(said))
    parts = [content(shuffled[:middle]), content(shuffled[middle:])]
    assert schemas.add_contents(parts) == content(said)
    assert content([]) == schemas.NO_CONTENT


@given(SAID, ROW, st.integers(0, 20))
def test_the_content_hash_tells_any_other_row(said: Said, row: tuple[str, str, str | None], place: int) -> None:
    one, text, label = row
    others = [(f"{one}.", text, label), (one, "f" * 64, label), (one, text, f"{label}.")]
    whole = content([*said[:place], row, *said[place:]])
    assert whole not in {content(said), content([*said, row, row]), content([*said, row], "r-2")}
    assert whole not in {content([*said, other]) for other in others}

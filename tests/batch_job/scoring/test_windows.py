"""Scoring without Spark: what the engine is given of a window, and what each row gets of it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_job.scoring import windows
from batch_job.scoring.models import Model
from batch_job.scoring.options import ScoringOptions
from batch_job.scoring.runner import HARMLESS
from batch_job.scoring.windows import ScoredWindow
from shared_model import demo_messages
from shared_model.batches import Running
from shared_model.encoding import Text, TokenBatch, fine_bucket
from shared_model.engine import Engine
from shared_model.errors import JobError
from shared_model.releases.store import Release
from shared_model.types import Device, Precision

pytestmark = pytest.mark.default_release

DISTINCT = list(dict.fromkeys(islice(demo_messages.texts(seed=3), 400)))[:150]
#: Every text twice, some three times, none beside its like.
TEXTS = [*DISTINCT, *reversed(DISTINCT), *DISTINCT[:20]]


class Watched:
    """The release's own engine, and what it was given."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.batches: list[TokenBatch] = []
        #: Token ids of texts that it cannot read.
        self.poison: list[list[int]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def start(self, batch: TokenBatch) -> Running:
        rows = (ids[mask > 0].tolist() for ids, mask in zip(batch.ids, batch.mask, strict=True))
        if any(row in self.poison for row in rows):
            raise RuntimeError("cannot be read")
        self.batches.append(batch)
        return self._engine.start(batch)

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)


@pytest.fixture(scope="module")
def compiled(release: Release) -> Iterator[Engine]:
    engine = release.engine(Precision.BF16, Device.CPU, threads=1)
    yield engine
    engine.close()


@pytest.fixture
def engine(compiled: Engine) -> Watched:
    return Watched(compiled)


@pytest.fixture
def model(release: Release, engine: Watched) -> Model:
    return Model(release.id, release.heads, release.encoder(), engine)  # type: ignore[arg-type]


def score(texts: Sequence[str], model: Model, options: ScoringOptions, most_poison: int = 0) -> ScoredWindow:
    batch = pa.record_batch({"text": list(texts)})
    [window] = windows.score_windows(
        iter([batch]), lambda it: it.column("text").to_pylist(), model, options, most_poison
    )
    return window


def test_texts_that_are_the_same_run_once_and_each_row_gets_its_own_texts_scores(
    model: Model, engine: Watched, options: ScoringOptions
) -> None:
    once = score(TEXTS, model, options)
    assert (engine.rows, once.distinct) == (150, 150)
    engine.batches.clear()
    each = score(TEXTS, model, replace(options, deduplicate=False))
    assert (engine.rows, each.distinct) == (len(TEXTS), len(TEXTS))
    # At one width a text has the same bits in any company.
    np.testing.assert_array_equal(once.indices, each.indices)
    np.testing.assert_array_equal(once.scores, each.scores)
    assert [list(it.ids) for it in once.encodings] == [list(it.ids) for it in each.encodings]
    assert len({tuple(row) for row in once.scores.tolist()}) > 100


def test_tokens_are_those_that_ran(model: Model, engine: Watched, options: ScoringOptions) -> None:
    for deduplicate in (True, False):
        engine.batches.clear()
        window = score(TEXTS, model, replace(options, deduplicate=deduplicate))
        assert window.tokens == sum(int(batch.mask.sum()) for batch in engine.batches)
        assert window.padded_tokens == sum(batch.mask.size for batch in engine.batches)


def test_batches_have_one_width_and_two_percent_of_padding_at_most(
    model: Model, engine: Watched, options: ScoringOptions
) -> None:
    texts = list(islice(demo_messages.texts(seed=5), 500))
    window = score(texts, model, options)
    assert 1 - window.tokens / window.padded_tokens <= 0.02
    for batch in engine.batches:
        assert {fine_bucket(int(tokens)) for tokens in batch.mask.sum(axis=1)} == {batch.tokens}


@pytest.mark.parametrize("deduplicate", [True, False])
def test_poisoned_texts_are_left_out_and_each_other_row_has_its_own_scores(
    model: Model, engine: Watched, options: ScoringOptions, deduplicate: bool
) -> None:
    options = replace(options, deduplicate=deduplicate)
    clean = score(TEXTS, model, options)
    engine.poison = [clean.encodings[row].ids.tolist() for row in (3, 77)]
    engine.batches.clear()
    window = score(TEXTS, model, options, most_poison=6)
    assert window.poisoned == [row for row, text in enumerate(TEXTS) if text in (TEXTS[3], TEXTS[77])]
    others = np.delete(np.arange(len(TEXTS)), window.poisoned)
    assert window.texts == window.source.column("text").to_pylist() == [TEXTS[row] for row in others]
    assert window.batch.num_rows == len(TEXTS)
    np.testing.assert_array_equal(window.indices, clean.indices[others])
    np.testing.assert_array_equal(window.scores, clean.scores[others])
    assert [it.tokens for it in window.encodings] == [clean.encodings[row].tokens for row in others]
    assert window.distinct == (148 if deduplicate else len(others))
    ran = sum(int(batch.mask.sum()) for batch in engine.batches if batch is not HARMLESS)
    assert window.tokens == ran <= window.padded_tokens
    with pytest.raises(JobError, match="RuntimeError: cannot be read"):
        score(TEXTS, model, options)


@given(texts=st.lists(st.sampled_from(["a", "b", "c", "A", ("a", "b"), ("ab", "")])))
def test_collapsed_texts_are_each_there_once_and_found_from_every_row(texts: list[Text]) -> None:
    distinct, places = windows.deduplicated(texts)
    assert len(set(distinct)) == len(distinct)
    assert [distinct[place] for place in places] == texts

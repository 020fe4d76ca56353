"""Packed batches: any texts in any order run together, and each scores as it does alone."""

import functools
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared_model.batches import (
    LEAST_PACKED_TOKENS,
    MOST_PACKED_TOKENS,
    Batching,
    PackedBatch,
    fitting_tokens,
    pack,
    packed_ends,
)
from shared_model.building import checkpoint
from shared_model.encoding import Encoder, Encoding, Text, collate
from shared_model.engine import TAU
from shared_model.engines import torch_packing
from shared_model.engines.torch_engine import TorchEngine
from shared_model.engines.torch_packing import Packing
from shared_model.heads import Heads
from shared_model.releases.store import Release
from shared_model.types import Device, Precision
from tests.properties import examples
from tests.shared_model import tiny_models

#: Of all lengths; the last holds a token that is also RoBERTa's padding.
TEXTS: list[Text] = [*tiny_models.corpus()[:12], "", "card", "card " * 100, "my <pad> card"]
PAIRS: list[Text] = [("is my card here", "no"), ("no", "is my card here yet"), ("", "card " * 100), ("card", "")]
PACKED = sorted(tiny_models.FAMILIES.keys() - {"deberta-v2", "mpnet"})

packed_families = pytest.mark.parametrize("family", PACKED)


class Opened:
    """A packed engine, encoded texts, and the scores of each text alone."""

    def __init__(self, engine: TorchEngine, heads: Heads, encodings: list[Encoding]) -> None:
        self.engine, self.heads, self.encodings = engine, heads, encodings
        self.alone = np.concatenate([self.scores([row]) for row in range(len(encodings))])

    def scores(self, rows: list[int]) -> NDArray[np.float32]:
        raw = self.engine.start(pack([self.encodings[row] for row in rows])).result()
        return self.heads.scores(raw)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Opened]:
    @functools.cache
    def made(family: str, precision: Precision = Precision.FP32, pairs: bool = False) -> Opened:
        folder = tiny_models.make(tmp_path_factory.mktemp(family), family)
        loaded = checkpoint.load(folder, pairs=pairs)
        encoder = Encoder(loaded.files["tokenizer.json"], loaded.reads, release="")
        engine = TorchEngine(loaded.files, precision, Device.CPU)
        return Opened(engine, Heads.of(loaded.output), encoder.encode_many(PAIRS if pairs else TEXTS))

    return made


@pytest.fixture(scope="module")
def default_model(release: Release) -> Iterator[Opened]:
    """MiniLM in half precision, as on a GPU."""
    variant = release.manifest.variant(Precision.FP16, Device.CUDA)
    files = {name: release.read(path) for name, path in variant.files.items()}
    encodings = release.encoder().encode_many(TEXTS)
    with closing(TorchEngine(files, Precision.FP16, Device.CPU)) as engine:
        yield Opened(engine, release.heads, encodings)


def assert_as_alone(model: Opened, rows: list[int]) -> None:
    tau = TAU[model.engine.precision]
    together, alone = model.scores(rows), model.alone[rows]
    assert np.abs(together - alone).max() <= tau
    best = np.sort(alone, axis=1)
    clear = best[:, -1] - best[:, -2] >= 2 * tau
    assert (together.argmax(1) == alone.argmax(1))[clear].all()


@pytest.mark.heavy
@packed_families
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
@settings(max_examples=examples(20))
@given(rows=st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=24))
def test_a_text_scores_alone_as_in_any_packed_batch(
    opened: Callable[..., Opened], family: str, precision: Precision, rows: list[int]
) -> None:
    assert_as_alone(opened(family, precision), rows)


@pytest.mark.heavy
@settings(max_examples=examples(20), deadline=None)
@given(rows=st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=24))
def test_so_does_the_default_model_in_half_precision(default_model: Opened, rows: list[int]) -> None:
    assert_as_alone(default_model, rows)


@pytest.mark.heavy
@packed_families
def test_packed_and_padded_batches_are_one_computation(opened: Callable[..., Opened], family: str) -> None:
    model = opened(family)
    padded = model.heads.scores(model.engine.score(collate(model.encodings)))
    np.testing.assert_array_equal(padded, model.scores(list(range(len(TEXTS)))))


@pytest.mark.heavy
def test_token_types_of_pairs_are_packed_too(opened: Callable[..., Opened]) -> None:
    model = opened("bert", pairs=True)
    assert_as_alone(model, [3, 0, 2, 1, 0])
    batch = pack(model.encodings)
    untyped = PackedBatch(batch.ids, batch.lengths, np.zeros_like(batch.ids))
    assert np.abs(model.engine.start(untyped).result() - model.engine.start(batch).result()).max() > 0.1


@pytest.mark.heavy
def test_two_batches_may_be_under_way_and_a_third_takes_the_first_ones_buffer(opened: Callable[..., Opened]) -> None:
    model = opened("bert")
    parts = [[0, 1, 2], [14], [3, 12, 4, 5], [6]]
    running = [model.engine.start(pack([model.encodings[row] for row in part])) for part in parts]
    for part, batch in zip(parts, running, strict=True):
        np.testing.assert_allclose(model.heads.scores(batch.result()), model.alone[part], atol=1e-4)
        assert batch.seconds > 0


@pytest.mark.heavy
def test_a_model_that_cannot_pack_takes_no_packed_batch_and_fills_a_gpu_with_padded_ones(tmp_path: Path) -> None:
    loaded = checkpoint.load(tiny_models.make(tmp_path, "mpnet"))
    encoder = Encoder(loaded.files["tokenizer.json"], loaded.reads, release="")
    with closing(TorchEngine(loaded.files, Precision.FP16, Device.CPU)) as engine:
        assert (engine.batching, engine.bulk_tokens()) == (Batching.BUCKETS, 16_384)
        with pytest.raises(TypeError, match="padded"):
            engine.start(pack(encoder.encode_many(["card"])))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(0, 2**32 - 1))
def test_attention_on_cpu_is_exactly_that_of_each_row(lengths: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    query, key, value = (torch.randn(2, sum(lengths), 8) for _ in range(3))
    bounds = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    found = torch_packing.row_by_row(query, key, value, Packing(bounds, tuple(lengths)), 0.3, window=-1)
    same_row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = same_row[:, None] == same_row
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3)
    torch.testing.assert_close(found, expected.transpose(0, 1), atol=1e-5, rtol=1e-5)


@given(st.lists(st.integers(1, 600), min_size=1, max_size=300), st.integers(1, 2000))
def test_batches_are_cut_by_tokens_and_filled_in_order(lengths: list[int], budget: int) -> None:
    ends = packed_ends(lengths, budget)
    starts = [0, *ends[:-1]]
    assert ends[-1] == len(lengths)
    assert all(start < end for start, end in zip(starts, ends, strict=True))
    for start, end in zip(starts, ends, strict=True):
        assert sum(lengths[start:end]) <= budget or end == start + 1
        # The next text did not fit.
        assert end == len(lengths) or sum(lengths[start : end + 1]) > budget


@given(st.integers(1, 10**12), st.integers(1, 10**7))
def test_as_many_tokens_as_fit_up_to_the_most_that_are_worth_it(room: int, each: int) -> None:
    tokens = fitting_tokens(room, each)
    assert tokens * each <= room or tokens == 1
    assert tokens == MOST_PACKED_TOKENS or 2 * tokens * each > room
    assert MOST_PACKED_TOKENS % tokens == 0
    assert MOST_PACKED_TOKENS % LEAST_PACKED_TOKENS == 0

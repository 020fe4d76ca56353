"""Every architecture, as a folder of its own kind → one checkpoint → torch and OpenVINO, all saying the same."""

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from shared_model.batches import Batching
from shared_model.building import checkpoint, convert
from shared_model.building.checkpoint import Checkpoint
from shared_model.building.head import Head
from shared_model.encoding import Encoder, Text, TokenBatch, collate
from shared_model.engines import torch_packing
from shared_model.engines.openvino_cpu import OpenVinoEngine, read_model
from shared_model.engines.torch_engine import TorchEngine
from shared_model.engines.torch_model import load_module
from shared_model.errors import OutOfMemory
from shared_model.output import OutputKind
from shared_model.types import Device, Precision
from tests.shared_model import tiny_models

pytestmark = pytest.mark.heavy

PADDED = {"deberta-v2", "mpnet"}

#: Of all lengths, from no text at all to more than any of the models reads. The last has RoBERTa's padding inside.
TEXTS: list[Text] = [*tiny_models.corpus()[:9], "", "card", "card " * 100, "my <pad> card"]
PAIRS: list[Text] = [("is my card here", "no"), ("no", "is my card here yet"), ("", "card " * 100), ("card", "")]


@dataclass(frozen=True)
class Model:
    """A folder, what we make of it, and what transformers makes of it."""

    folder: Path
    checkpoint: Checkpoint

    @functools.cached_property
    def graph(self) -> dict[str, bytes]:
        return convert.openvino_files(convert.to_openvino(self.checkpoint))

    def batch(self, texts: list[Text]) -> TokenBatch:
        encoder = Encoder(self.checkpoint.files["tokenizer.json"], self.checkpoint.reads, release="")
        return collate(encoder.encode_many(texts))

    def by_transformers(self, texts: list[Text]) -> NDArray[np.float32]:
        """Logits with its own tokenizer and its own padding."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
        first, second = (texts, None) if isinstance(texts[0], str) else map(list, zip(*texts, strict=True))
        inputs = tokenizer(
            first,
            second,
            padding=True,
            truncation=True,
            max_length=self.checkpoint.reads.max_tokens,
            return_tensors="pt",
            return_token_type_ids=self.checkpoint.reads.types,
        )
        model = transformers.AutoModelForSequenceClassification.from_pretrained(self.folder, dtype=torch.float32)
        with torch.inference_mode():
            return np.asarray(model.eval()(**inputs).logits)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Model]:
    """Makes tiny models, each once: model(family, pairs=…, **what `tiny_models.make` takes)."""

    @functools.cache
    def made(family: str, pairs: bool = False, **options: Any) -> Model:
        folder = tiny_models.make(tmp_path_factory.mktemp(family), family, **options)
        return Model(folder, checkpoint.load(folder, pairs=pairs))

    return made


def by_module(checkpoint: Checkpoint, batch: TokenBatch) -> NDArray[np.float32]:
    """The padded torch module, fp32."""
    tensors = [torch.from_numpy(a) for a in (batch.ids, batch.mask, batch.types) if a is not None]
    with torch.inference_mode():
        return np.asarray(load_module(checkpoint.files)(*tensors))


def score(engine: TorchEngine | OpenVinoEngine, batch: TokenBatch) -> NDArray[np.float32]:
    scores = engine.score(batch)
    engine.close()
    return scores


def torch_engine(model: Model, precision: Precision = Precision.FP32) -> TorchEngine:
    return TorchEngine(model.checkpoint.files, precision, Device.CPU)


def openvino_engine(model: Model, precision: Precision = Precision.FP32) -> OpenVinoEngine:
    return OpenVinoEngine(read_model(model.graph), precision, threads=1)


def batching(family: str) -> Batching:
    return Batching.BUCKETS if family in PADDED else Batching.PACKED


every_family = pytest.mark.parametrize("family", tiny_models.FAMILIES)


@every_family
def test_the_module_says_what_transformers_says(model: Callable[..., Model], family: str) -> None:
    made = model(family)
    ours = by_module(made.checkpoint, made.batch(TEXTS))
    assert ours.dtype == np.float32
    assert np.ptp(ours, axis=0).min() > 0.1, "the texts do not differ enough to show a mistake"
    np.testing.assert_allclose(ours, made.by_transformers(TEXTS), atol=1e-5)


@every_family
def test_the_graph_says_the_same_at_every_shape(model: Callable[..., Model], family: str) -> None:
    made = model(family)
    expected = by_module(made.checkpoint, made.batch(TEXTS))
    engine = openvino_engine(made)
    engine.warm_up([(1, 8), (2, 24)])
    np.testing.assert_allclose(engine.score(made.batch(TEXTS)), expected, atol=1e-4)
    for row in (0, 9, 11):
        np.testing.assert_allclose(engine.score(made.batch(TEXTS[row : row + 1])), expected[row : row + 1], atol=1e-4)
    engine.close()


@every_family
def test_the_graph_survives_half_precision(model: Callable[..., Model], family: str) -> None:
    """BF16 has no room for the large negative numbers that masks are often made of."""
    made = model(family)
    expected = by_module(made.checkpoint, made.batch(TEXTS))
    np.testing.assert_allclose(score(openvino_engine(made, Precision.BF16), made.batch(TEXTS)), expected, atol=0.15)


@every_family
def test_the_engine_packs_where_the_model_allows_and_says_the_same(model: Callable[..., Model], family: str) -> None:
    made = model(family)
    expected = by_module(made.checkpoint, made.batch(TEXTS))
    engine = torch_engine(made)
    engine.warm_up([(2, 8)])
    assert engine.batching == batching(family)
    np.testing.assert_allclose(score(engine, made.batch(TEXTS)), expected, atol=1e-5)
    half = torch_engine(made, Precision.FP16)
    assert (half.batching, half.precision, half.width) == (batching(family), Precision.FP16, 1)
    np.testing.assert_allclose(score(half, made.batch(TEXTS)), expected, atol=1e-2)  # measured: 3e-3


@every_family
def test_what_padding_holds_never_matters(model: Callable[..., Model], family: str) -> None:
    made = model(family)
    batch = made.batch(TEXTS)
    words = np.random.default_rng(3).integers(0, 300, batch.ids.shape)
    other = TokenBatch(np.where(batch.mask == 1, batch.ids, words), batch.mask)
    assert (other.ids != batch.ids).sum() > 100
    np.testing.assert_allclose(by_module(made.checkpoint, other), by_module(made.checkpoint, batch), atol=1e-6)
    for opened in (torch_engine, openvino_engine):
        engine = opened(made)
        np.testing.assert_allclose(engine.score(other), engine.score(batch), atol=1e-6)
        engine.close()


@every_family
def test_a_text_alone_scores_as_in_company(model: Callable[..., Model], family: str) -> None:
    made = model(family)
    engine = torch_engine(made)
    together = engine.score(made.batch(TEXTS))
    alone = [engine.score(made.batch([text]))[0] for text in TEXTS]
    engine.close()
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_without_packing_rows_would_see_each_other(model: Callable[..., Model]) -> None:
    """The bounds are what keeps rows apart: with those of another batch the answers change."""
    made = model("bert")
    batch = made.batch(TEXTS)
    moved = TokenBatch(batch.ids, np.roll(batch.mask, 1, axis=0))
    engine = torch_engine(made)
    assert np.abs(engine.score(moved) - engine.score(batch)).max() > 0.1
    engine.close()


def test_the_cuda_kernel_takes_and_gives_what_the_cpu_does() -> None:
    """As far as can be seen without a GPU: torch checks a call on its meta device, where nothing is computed."""
    lengths = (3, 5)
    for device in ("cpu", "meta"):
        states = torch.zeros(4, sum(lengths), 8, dtype=torch.float16, device=device)
        packing = torch_packing.Packing(torch.tensor([0, 3, 8], dtype=torch.int32).to(device), lengths)
        kernel = torch_packing.flash if device == "meta" else torch_packing.row_by_row
        attended = kernel(states, states, states, packing, scaling=0.5, window=-1)
        assert (attended.shape, attended.dtype) == ((8, 4, 8), torch.float16)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, OutputKind.SINGLE_LABEL),
        ({"problem_type": "multi_label_classification"}, OutputKind.MULTI_LABEL),
        ({"problem_type": "regression"}, OutputKind.REGRESSION),
        ({"labels": ("stars",)}, OutputKind.REGRESSION),
        ({"labels": ("urgent",), "problem_type": "multi_label_classification"}, OutputKind.MULTI_LABEL),
    ],
)
def test_outputs_are_one_contract(model: Callable[..., Model], options: dict[str, Any], kind: OutputKind) -> None:
    made = model("distilbert", **options)
    output = made.checkpoint.output
    names = options.get("labels", ("no", "yes", "perhaps"))
    assert (output.kind, output.names, output.width) == (kind, names, len(names))
    raw = score(torch_engine(made), made.batch(TEXTS))
    assert raw.shape == (len(TEXTS), output.width)
    np.testing.assert_allclose(raw, made.by_transformers(TEXTS), atol=1e-5)


@pytest.mark.parametrize(("family", "types"), [("bert", True), ("roberta", False)])
def test_pairs(model: Callable[..., Model], family: str, types: bool) -> None:
    made = model(family, pairs=True)
    assert (made.checkpoint.reads.pairs, made.checkpoint.reads.types) == (True, types)
    batch, expected = made.batch(PAIRS), made.by_transformers(PAIRS)
    assert (batch.types is not None) == types
    np.testing.assert_allclose(score(torch_engine(made), batch), expected, atol=1e-5)
    np.testing.assert_allclose(score(openvino_engine(made), batch), expected, atol=1e-4)


def test_token_types_tell_the_texts_of_a_pair_apart(model: Callable[..., Model]) -> None:
    made = model("bert", pairs=True)
    batch = made.batch(PAIRS)
    of_one_text = TokenBatch(batch.ids, batch.mask, np.zeros_like(batch.ids))
    for opened in (torch_engine, openvino_engine):
        engine = opened(made)
        engine.warm_up([(1, 8)])
        assert np.abs(engine.score(of_one_text) - engine.score(batch)).max() > 0.1
        assert (engine.score(TokenBatch(batch.ids, batch.mask)) == engine.score(of_one_text)).all()
        engine.close()


@pytest.mark.parametrize("family", ["bert", "modernbert"])
@pytest.mark.parametrize("pooling", [None, "mean", "cls"])
def test_embeddings_are_pooled_as_their_folder_says(
    tmp_path: Path, model: Callable[..., Model], family: str, pooling: str | None
) -> None:
    made = model(family, encoder=True)
    if pooling:
        made = Model(tmp_path, copy_with_pooling(made.folder, tmp_path, {"pooling_mode": pooling}))
    batch = made.batch(TEXTS)
    encoder = transformers.AutoModel.from_pretrained(made.folder).eval()
    rows = []
    with torch.inference_mode():
        for ids, mask in zip(batch.ids, batch.mask, strict=True):
            hidden = encoder(torch.from_numpy(ids[mask == 1])[None]).last_hidden_state[0]
            vector = hidden[0] if pooling == "cls" else hidden.mean(0)
            rows.append((vector / vector.norm()).numpy())
    assert (made.checkpoint.output.kind, made.checkpoint.output.width) == (OutputKind.EMBEDDING, 32)
    np.testing.assert_allclose(score(torch_engine(made), batch), rows, atol=1e-5)
    if pooling:
        np.testing.assert_allclose(score(openvino_engine(made), batch), rows, atol=1e-4)


def copy_with_pooling(source: Path, folder: Path, options: dict[str, object]) -> Checkpoint:
    tiny_models.copy(source, folder)
    tiny_models.edit(folder / "1_Pooling" / "config.json", **options)
    return checkpoint.load(folder)


@pytest.mark.parametrize(
    ("option", "pooling"), [("pooling_mode_mean_tokens", "mean"), ("pooling_mode_cls_token", "cls")]
)
def test_older_folders_say_their_pooling_in_another_way(
    tmp_path: Path, model: Callable[..., Model], option: str, pooling: str
) -> None:
    made = model("bert", encoder=True)
    older = copy_with_pooling(made.folder, tmp_path / "older", {option: True, "pooling_mode_max_tokens": False})
    newer = copy_with_pooling(made.folder, tmp_path / "newer", {"pooling_mode": pooling})
    assert older == newer


def test_a_head_reads_the_embedding(model: Callable[..., Model]) -> None:
    made = model("distilbert", encoder=True)
    draw = np.random.default_rng(7)
    head = Head(("a", "b"), draw.normal(size=(2, 32)).astype(np.float32), draw.normal(size=2).astype(np.float32))
    with_head = Model(made.folder, checkpoint.with_heads(made.folder, [head]))
    assert with_head.checkpoint.output.kind is OutputKind.SINGLE_LABEL
    assert with_head.checkpoint.output.names == ("a", "b")
    assert with_head.checkpoint.parent == made.checkpoint.parent
    expected = score(torch_engine(made), made.batch(TEXTS)) @ head.weight.T + head.bias
    np.testing.assert_allclose(score(torch_engine(with_head), made.batch(TEXTS)), expected, atol=1e-5)


def test_a_device_without_room_for_a_batch_says_so_and_keeps_nothing_of_it(
    model: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a GPU without memory, raised by the model in the middle of a batch."""
    made, held = model("bert"), []
    engine, batch = torch_engine(made), made.batch(TEXTS)

    def full(*_: object) -> torch.Tensor:
        activations = torch.zeros(1000)
        held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of …")

    monkeypatch.setattr(engine, "_model", full)
    with pytest.raises(OutOfMemory) as raised:
        engine.score(batch)
    monkeypatch.undo()
    assert str(raised.value) == f"{batch.rows} rows of {batch.tokens} tokens: CUDA out of memory"
    # Else the next, smaller batch would find no more room than this one did.
    assert [tensor() for tensor in held] == [None]
    np.testing.assert_allclose(score(engine, batch), by_module(made.checkpoint, batch), atol=1e-4)

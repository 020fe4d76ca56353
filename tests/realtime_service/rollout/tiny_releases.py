"""Complete, sealed releases of a few kilobytes: each has its own answer or its own failure."""

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from shared_model.encoding import InputSpec
from shared_model.evaluation import report
from shared_model.heads import Heads, HeadSpec
from shared_model.output import OutputKind, OutputSpec
from shared_model.releases.manifest import Facts, Variant
from shared_model.releases.store import Release, Store
from shared_model.types import Device, Precision

WORDS = ("[PAD]", "[UNK]", "[SEP]", "where", "is", "my", "card", "please", "slowly")
#: The word that crashes a release made by `seal_poisonable`.
POISON = "slowly please"
LABELS = tuple(f"label-{number}" for number in range(8))
LABELLED = OutputSpec(OutputKind.SINGLE_LABEL, LABELS, len(LABELS))

_FILES = {"model.xml": "cpu/model.xml", "model.bin": "cpu/model.bin"}
_VARIANTS = tuple(Variant(precision, Device.CPU, _FILES) for precision in (Precision.BF16, Precision.INT8))
_FACTS = Facts("tiny", "0" * 64, LABELLED, InputSpec(max_tokens=64), "0" * 64, "none", _VARIANTS)

#: From (rows, tokens, width) of float numbers and the mask of the same rows and tokens, (rows, width) raw outputs.
Head = Callable[[ov.Output, ov.Output], ov.Output]


def seal(
    store: Store,
    name: str,
    favourite: int = 0,
    output: OutputSpec = LABELLED,
    further: tuple[HeadSpec, ...] = (),
    **changes: object,
) -> Release:
    """A release that prefers the label of number `favourite` for every text. `further`: its other heads."""
    width = Heads.of(output, further=further).width
    return seal_graph(store, name, embedding(table(width, favourite)), output, further=further, **changes)


def table(width: int = LABELLED.width, favourite: int = 0, words: Sequence[str] = WORDS) -> np.ndarray:
    """The numbers of each word, (words, width)."""
    numbers = np.random.default_rng(7).normal(0.0, 1.0, (len(words), width)).astype(np.float32)
    numbers[:, favourite] += 9.0
    return numbers


def seal_counting(store: Store, name: str) -> Release:
    """A release that reads the numbers below 2,000, too, and so tells texts apart that differ in one. A text with the
    word "slowly" has another label than all others."""
    words = (*WORDS, *map(str, range(2_000)))
    numbers = table(words=words)
    numbers[WORDS.index("slowly"), 1] += 1000.0
    return seal_files(store, name, *_serialised(embedding(numbers)), words=words)


def seal_poisonable(store: Store, name: str) -> Release:
    """A release that crashes on POISON, in any batch, and on nothing else."""
    numbers = table()
    numbers[WORDS.index("slowly"), 0] += 1000.0
    return seal_graph(store, name, embedding(numbers, crashing_where_asked))


def seal_graph(store: Store, name: str, model: ov.Model, output: OutputSpec = LABELLED, **changes: object) -> Release:
    return seal_files(store, name, *_serialised(model), output, **changes)


def seal_unproven(store: Store, name: str, graphs: Mapping[str, ov.Model]) -> Release:
    """A release without attestation. `graphs`: "cpu" of all variants, and "openvino" of the fp32 reference."""
    files = {"tokenizer.json": tokenizer()}
    for folder, graph in graphs.items():
        files[f"{folder}/model.xml"], files[f"{folder}/model.bin"] = _serialised(graph)
    reference = Variant(Precision.FP32, Device.CPU, {file: f"openvino/{file}" for file in _FILES})
    return store.seal(files, dataclasses.replace(_FACTS, name=name, variants=(reference, *_VARIANTS)))


def seal_files(
    store: Store,
    name: str,
    xml: bytes,
    weights: bytes,
    output: OutputSpec = LABELLED,
    words: Sequence[str] = WORDS,
    **changes: object,
) -> Release:
    """A sealed release with the attestation of a gate that passed."""
    files = {_FILES["model.xml"]: xml, _FILES["model.bin"]: weights, "tokenizer.json": tokenizer(words)}
    facts = dataclasses.replace(_FACTS, name=name, output=output, **changes)  # type: ignore[arg-type]
    release = store.seal(files, facts)
    passed = [{"precision": it.precision, "device": it.device, "passed": True} for it in release.manifest.variants]
    release.write_note(report.JSON, json.dumps({"release": release.id, "variants": passed}).encode())
    return release


def embedding(numbers: np.ndarray, after: Callable[[ov.Output], ov.Output] = lambda pooled: pooled) -> ov.Model:
    """Mean of the rows of `numbers` (words, width) that the tokens name; `after` may spoil it."""
    ids = ops.parameter([-1, -1], np.int64, name="ids")
    mask = ops.parameter([-1, -1], np.int64, name="mask")
    for parameter in (ids, mask):
        parameter.output(0).set_names({parameter.get_friendly_name()})
    weight = ops.unsqueeze(ops.convert(mask, "f32"), ops.constant(2))
    read = ops.multiply(ops.gather(ops.constant(numbers), ids, ops.constant(0)), weight)
    mean = ops.divide(ops.reduce_sum(read, ops.constant(1)), ops.reduce_sum(weight, ops.constant(1)))
    return ov.Model([after(mean.output(0))], [ids, mask], "tiny")


def endless(pooled: ov.Output) -> ov.Output:
    """The same numbers after 2⁶² turns of a loop."""
    return _turning(pooled, ops.constant(np.int64(2**62)).output(0))


def slow_where_asked(pooled: ov.Output, turns: int = 3 * 10**5) -> ov.Output:
    """The same numbers, but after so many turns of a loop for a table that adds 1000 to the first number of a word: a
    second or so of the processor's time, unless fewer are asked for."""
    asked = ops.greater(ops.reduce_max(pooled, ops.constant([0, 1])), ops.constant(np.float32(100.0)))
    wanted = ops.select(asked, ops.constant(np.int64(turns)), ops.constant(np.int64(1)))
    return _turning(pooled, wanted.output(0))


def slow_in_full_batches(pooled: ov.Output) -> ov.Output:
    """The same numbers, but after 20,000 turns of a loop for 32 rows or more, as the calls of a full batch have: more
    than 25 ms."""
    rows = ops.gather(ops.shape_of(pooled), ops.constant(0), ops.constant(0))
    full = ops.greater_equal(rows, ops.constant(np.int64(32)))
    return _turning(pooled, ops.select(full, ops.constant(np.int64(2 * 10**4)), ops.constant(np.int64(1))).output(0))


def crashing_where_asked(pooled: ov.Output) -> ov.Output:
    """The same numbers, but reads far beside them for a table that adds 1000 to the first number of a word."""
    asked = ops.greater(ops.reduce_max(pooled, ops.constant([0, 1])), ops.constant(np.float32(100.0)))
    flat = ops.reshape(pooled, ops.constant([-1]), False)
    numbers = ops.reduce_prod(ops.shape_of(pooled), ops.constant([0]))
    own = ops.range(ops.constant(np.int64(0)), numbers, ops.constant(np.int64(1)), "i64")
    far = ops.select(asked, ops.constant(np.int64(2**40)), ops.constant(np.int64(0)))
    read = ops.gather_nd(flat, ops.reshape(ops.add(own, far), ops.constant([-1, 1]), False))
    return ops.reshape(read, ops.shape_of(pooled), False).output(0)


def _turning(pooled: ov.Output, turns: ov.Output) -> ov.Output:
    state = ops.parameter(ov.PartialShape([-1, -1]), np.float32)
    after = ops.multiply(state, ops.constant(np.float32(1.0)))
    body = ov.Model([after, ops.constant(np.array(True))], [state], "turn")
    loop = ops.loop(turns, ops.constant(np.array(True)).output(0))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 1])
    loop.set_merged_input(state, pooled, body.results[0].output(0))
    return loop.get_iter_value(body.results[0].output(0), -1)


def crashing(pooled: ov.Output) -> ov.Output:
    """Reads a terabyte beside the numbers, which the kernel answers with a signal."""
    flat = ops.reshape(pooled, ops.constant([-1]), False)
    far = ops.add(ops.convert(ops.multiply(flat, ops.constant(np.float32(0))), "i64"), ops.constant(np.int64(2**40)))
    read = ops.gather_nd(flat, ops.reshape(far, ops.constant([-1, 1]), False))
    return ops.reshape(read, ops.shape_of(pooled), False).output(0)


def _serialised(model: ov.Model) -> tuple[bytes, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.xml"
        ov.serialize(model, path)
        return path.read_bytes(), path.with_suffix(".bin").read_bytes()


def tokenizer(words: Sequence[str] = WORDS) -> bytes:
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[1]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="$A [SEP]", pair="$A [SEP] $B:1 [SEP]:1", special_tokens=[("[SEP]", 2)]
    )
    return made.to_str().encode()

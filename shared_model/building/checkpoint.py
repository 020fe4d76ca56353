"""Loads a Hugging Face classifier or sentence encoder as the common source of all variants of a release."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shared_model.building import model_folder
from shared_model.building.head import Head
from shared_model.encoding import TOKEN_STEP, InputSpec, coarse_buckets
from shared_model.errors import BadInput
from shared_model.heads import DEFAULT_HEAD, Heads, HeadSpec
from shared_model.output import OutputKind, OutputSpec

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

#: Default for the longest text of a release: the cost of a text grows with the square of its tokens.
MAX_TOKENS = 512

_KINDS = {
    "single_label_classification": OutputKind.SINGLE_LABEL,
    "multi_label_classification": OutputKind.MULTI_LABEL,
    "regression": OutputKind.REGRESSION,
}


@dataclass(frozen=True)
class Checkpoint:
    """One model in fp32. `parent`: sha256 of its source weights. `output`: of the first head, whose name is `head`;
    `further`: the other heads.

    `files`: config.json and weights.safetensors, as `engines.torch_model` reads them, and tokenizer.json.
    """

    parent: str
    output: OutputSpec
    reads: InputSpec
    files: Mapping[str, bytes]
    head: str = DEFAULT_HEAD
    further: tuple[HeadSpec, ...] = ()

    @property
    def heads(self) -> Heads:
        return Heads.of(self.output, self.head, self.further)


def load(model: str | Path, *, pairs: bool = False, max_tokens: int | None = None) -> Checkpoint:
    """Load a sequence classifier or sentence encoder, from a folder or the Hugging Face hub.

    `pairs`: the model reads two texts at a time. `max_tokens`: overrides the default; rounded down to a multiple of 8.
    Raises: BadInput, in one line, for a model that cannot become a release.
    """
    folder = model_folder.find(model)
    config = model_folder.read_config(folder)
    pooling = model_folder.read_pooling(folder, config)
    tensors, parent = model_folder.read_weights(folder)
    loaded = _load_strictly(folder, config, tensors, encoder=pooling is not None)
    sentence = {"pooling": pooling, "outputs": None} if pooling else None
    prefix = "encoder." if pooling else "model."
    tokenizer = model_folder.read_tokenizer(folder)
    _check_vocabulary(folder, tokenizer, loaded)
    heads = _heads(folder, loaded.config, embedding=pooling is not None)
    read = Checkpoint(
        parent=parent,
        output=heads.first.output,
        head=heads.first.name,
        further=heads.further,
        reads=InputSpec(
            max_tokens=_max_tokens(folder, loaded, max_tokens),
            pairs=pairs,
            # A model with several token types was trained with the type of each token.
            types=pairs and getattr(loaded.config, "type_vocab_size", 0) > 1,
        ),
        files={
            "config.json": _json({"model": config, "sentence": sentence}),
            "weights.safetensors": _safetensors({prefix + name: value for name, value in loaded.state_dict().items()}),
            "tokenizer.json": tokenizer,
        },
    )
    _check_padding(folder, read)
    return read


def load_encoder(encoder: str | Path, *, max_tokens: int | None = None) -> Checkpoint:
    """Load a sentence encoder, whose output is an embedding. Raises: BadInput, also for a classifier."""
    checkpoint = load(encoder, max_tokens=max_tokens)
    if checkpoint.output.kind is not OutputKind.EMBEDDING:
        raise BadInput(str(encoder), "is a classifier already; a head needs a sentence encoder")
    return checkpoint


def with_heads(encoder: str | Path, trained: Sequence[Head], *, max_tokens: int | None = None) -> Checkpoint:
    """A sentence encoder with linear heads that `train-head` trained on its embeddings: one layer with the rows of all,
    so that further heads cost no further operation. Raises: BadInput."""
    import safetensors.torch
    import torch

    base = load_encoder(encoder, max_tokens=max_tokens)
    for head in trained:
        if (width := head.weight.shape[1]) != base.output.width:
            made = f"makes {base.output.width} numbers of a text"
            raise BadInput(str(encoder), f"{made}, the head was trained on {width}")
    first, *further = (head.spec for head in trained)
    weight, bias = (np.concatenate([getattr(head, part) for head in trained]) for part in ("weight", "bias"))
    document = json.loads(base.files["config.json"])
    document["sentence"]["outputs"] = len(bias)
    tensors = safetensors.torch.load(base.files["weights.safetensors"])
    tensors |= {"head.weight": torch.from_numpy(weight), "head.bias": torch.from_numpy(bias)}
    files = {**base.files, "config.json": _json(document), "weights.safetensors": _safetensors(tensors)}
    return replace(base, output=first.output, head=first.name, further=tuple(further), files=files)


def _load_strictly(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, "Tensor"], *, encoder: bool
) -> "PreTrainedModel":
    """The model in transformers, fp32, with all of its weights taken from `tensors`. Raises: BadInput."""
    import torch
    import transformers

    classes = transformers.MODEL_MAPPING if encoder else transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    try:
        with quiet_transformers():
            settings = transformers.AutoConfig.for_model(**config)
            # from_pretrained renames tensors of old checkpoints; load_state_dict would refuse those.
            model, report = classes[type(settings)].from_pretrained(
                None,
                config=settings,
                state_dict=dict(tensors),
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:
        reason = model_folder.brief(error)
        raise BadInput(str(folder / "config.json"), f"describes no model that can be built: {reason}") from error
    problems = [
        *(f"{name} is missing" for name in sorted(report["missing_keys"]) if not (encoder and _unused(name))),
        *(f"{name} is of another shape" for name, *_ in sorted(report["mismatched_keys"])),
        *(f"{name} has no place" for name in sorted(report["unexpected_keys"]) if not _unused(name)),
    ]
    if problems:
        raise BadInput(str(folder), f"its weights do not match its config.json: {problems[0]}")
    if encoder:
        model.pooler = None
    return model


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' own output; problems are reported in one line instead."""
    from transformers.utils import logging

    before, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bar:
            logging.enable_progress_bar()


def _unused(tensor: str) -> bool:
    """Whether a tensor may be missing or extra: poolers belong to pre-training, and position ids are constant."""
    return "pooler." in tensor or tensor.endswith("position_ids")


def _heads(folder: Path, config: Any, *, embedding: bool) -> Heads:
    """One head; or those that `tandem_heads` in a classifier's config.json lists, each with `name`, `problem_type` and
    its `labels`, in the order of the classification layer's rows."""
    if embedding:
        return Heads.of(OutputSpec(OutputKind.EMBEDDING, (), config.hidden_size))
    names = [str(config.id2label[index]) for index in sorted(config.id2label)]
    try:
        if listed := getattr(config, "tandem_heads", None):
            heads = Heads(tuple(HeadSpec(it["name"], _output(it["problem_type"], it["labels"])) for it in listed))
        else:
            problem = config.problem_type or ("regression" if len(names) == 1 else "single_label_classification")
            heads = Heads.of(_output(problem, names))
        if heads.width != len(names):
            raise ValueError(f"tandem_heads has {heads.width} labels, the classification layer {len(names)} rows")
    except (ValueError, KeyError, TypeError) as error:
        problem = f"tandem_heads has no {error}" if isinstance(error, KeyError) else str(error)
        raise BadInput(str(folder / "config.json"), problem) from error
    return heads


def _output(problem: str, labels: Sequence[object]) -> OutputSpec:
    if problem not in _KINDS:
        raise ValueError(f"problem_type {problem!r} is not one of {', '.join(_KINDS)}")
    return OutputSpec(_KINDS[problem], tuple(map(str, labels)), len(labels))


def _max_tokens(folder: Path, model: "PreTrainedModel", asked: int | None) -> int:
    tokenizer = model_folder.read_json(folder, "tokenizer_config.json") or {}
    trained_on = (model_folder.read_json(folder, "sentence_bert_config.json") or {}).get("max_seq_length")
    # transformers writes 10^30 for an unknown maximum.
    most = min(_positions(model), tokenizer.get("model_max_length") or MAX_TOKENS)
    tokens = asked or min(most, trained_on or MAX_TOKENS, MAX_TOKENS)
    if not TOKEN_STEP <= tokens <= most:
        raise BadInput("max_tokens", f"is {tokens}; {folder} reads {TOKEN_STEP} to {int(most)}")
    return coarse_buckets(int(tokens))[-1]


def _positions(model: "PreTrainedModel") -> int:
    """The longest text, in tokens, for which the model has positions."""
    table = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    # RoBERTa and related models number positions from padding_idx + 1.
    unused = 0 if padding is None else padding + 1
    return int(getattr(model.config, "max_position_embeddings", MAX_TOKENS)) - unused


def _check_vocabulary(folder: Path, tokenizer: bytes, model: "PreTrainedModel") -> None:
    from tokenizers import Tokenizer

    largest = max(Tokenizer.from_buffer(tokenizer).get_vocab(with_added_tokens=True).values(), default=-1)
    known = model.get_input_embeddings().num_embeddings
    if not 0 <= largest < known:
        raise BadInput(str(folder), f"its tokenizer makes ids up to {largest}, its model knows {known}")


def _check_padding(folder: Path, checkpoint: Checkpoint) -> None:
    """Raises: BadInput if scores depend on the padding after a text, as those of some decoders do."""
    import torch

    from shared_model.engines.torch_model import load_module

    ids = torch.arange(TOKEN_STEP)[None]
    nothing = torch.zeros_like(ids)
    try:
        with torch.inference_mode():
            module = load_module(checkpoint.files)
            alone = module(ids, torch.ones_like(ids))
            coarse_bucket = module(torch.cat([ids, nothing], 1), torch.cat([torch.ones_like(ids), nothing], 1))
    except (ValueError, RuntimeError, IndexError) as error:
        raise BadInput(str(folder), f"its model cannot run: {model_folder.brief(error)}") from error
    if not torch.allclose(alone, coarse_bucket, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise BadInput(str(folder), "its answers depend on the padding behind a text; it cannot be run in batches")


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1, sort_keys=True).encode()


def _safetensors(tensors: Mapping[str, "Tensor"]) -> bytes:
    import safetensors.torch

    data: bytes = safetensors.torch.save({name: value.contiguous() for name, value in tensors.items()})
    return data

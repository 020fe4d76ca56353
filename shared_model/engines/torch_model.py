"""The torch module of a release: a Hugging Face classifier, or an encoder with pooling and a linear head.

Both map (ids, mask, types), int64 (rows, tokens), to raw outputs, fp32 (rows, width). `types` are for models that
distinguish the two texts of a pair. A packed module takes ids and types as (1, tokens of all rows), a Packing, and as
the mask ones (rows, 1). A release's `config.json` selects the module:

    {"model": {…Hugging Face's config…}, "sentence": null}
    {"model": {…}, "sentence": {"pooling": "mean" | "cls", "outputs": N | null}}     null: the embedding itself
"""

import json
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PretrainedConfig,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from shared_model.engines import torch_packing
from shared_model.engines.torch_packing import PackedEncoder, Packing

#: torch's attention with masks in which padding attends to itself; for models with a sliding window.
_WINDOWED = "tandem_windowed"


class Classifier(nn.Module):
    """A Hugging Face sequence-classification model."""

    def __init__(self, config: PretrainedConfig, attention: str | None) -> None:
        super().__init__()
        build = AutoModelForSequenceClassification.from_config
        # The config's dtype is the checkpoint's; a release's weights are fp32.
        self.model = build(config, dtype=torch.float32, attn_implementation=attention)

    def pack(self) -> None:
        pooling = getattr(self.model.config, "classifier_pooling", "cls")
        setattr(self.model, self.model.base_model_prefix, PackedEncoder(self.model.base_model, pooling))

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None = None, packing: Packing | None = None) -> Tensor:
        logits: Tensor = self.model(**_inputs(ids, mask, types, packing)).logits
        return logits.float()


class SentenceModel(nn.Module):
    """An encoder, pooling, normalisation to unit length; then an optional linear head."""

    def __init__(self, config: PretrainedConfig, pooling: str, outputs: int | None, attention: str | None) -> None:
        super().__init__()
        self.pooling = pooling
        self.encoder = AutoModel.from_config(config, dtype=torch.float32, attn_implementation=attention)
        # Sentence embeddings are pooled from the hidden states; the pooler belongs to pre-training.
        self.encoder.pooler = None
        self.head = nn.Linear(config.hidden_size, outputs) if outputs else None

    def pack(self) -> None:
        self.encoder = PackedEncoder(self.encoder, self.pooling)

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor | None = None, packing: Packing | None = None) -> Tensor:
        hidden = self.encoder(**_inputs(ids, mask, types, packing)).last_hidden_state.float()
        embedding = nn.functional.normalize(self._pool(hidden, mask), dim=-1)
        if self.head is None:
            return embedding
        return nn.functional.linear(embedding, self.head.weight.float(), self.head.bias.float())

    def _pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        if self.pooling == "cls":
            return hidden[:, 0]
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)


def load_module(files: Mapping[str, bytes], packed: bool = False) -> Classifier | SentenceModel:
    """Build the module from `config.json` and `weights.safetensors`; all tensors must match.

    `packed`: skip padding; forward then needs a Packing. See `torch_packing.possible`.
    """
    document = json.loads(files["config.json"])
    config, sentence = model_config(document), document["sentence"]
    attention = _attention(config, packed)
    module = SentenceModel(config, attention=attention, **sentence) if sentence else Classifier(config, attention)
    module.load_state_dict(safetensors.torch.load(files["weights.safetensors"]), strict=True)
    if packed:
        module.pack()
    return module.eval()


def layers_of(module: Classifier | SentenceModel) -> tuple[str, nn.ModuleList]:
    """The family of its encoder, and the encoder's layers, first to last."""
    encoder = module.encoder if isinstance(module, SentenceModel) else module.model.base_model
    base = encoder.base if isinstance(encoder, PackedEncoder) else encoder
    depth = base.config.num_hidden_layers
    found = [it for it in base.modules() if isinstance(it, nn.ModuleList) and len(it) == depth]
    return base.config.model_type, found[0]


def model_config(document: Mapping[str, Any]) -> PretrainedConfig:
    return AutoConfig.for_model(**document["model"])


def _inputs(ids: Tensor, mask: Tensor, types: Tensor | None, packing: Packing | None) -> dict[str, object]:
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "packing": packing}
    return {name: value for name, value in given.items() if value is not None}


def _attention(config: PretrainedConfig, packed: bool) -> str | None:
    """Name of the attention that transformers uses; None for the model's fastest."""
    if packed:
        return torch_packing.ATTENTION
    return _WINDOWED if getattr(config, "sliding_window", None) else None


def _windowed_mask(**asked: Any) -> Tensor:
    """True where a token attends to another, (rows, 1, tokens, tokens).

    Padding farther than a window from all text would attend to nothing. OpenVINO computes NaN for it, which spreads to
    the text. Letting padding attend to itself is harmless: its result is never read.
    """
    mask: Tensor = sdpa_mask(**{**asked, "allow_is_bidirectional_skip": False})
    place = torch.arange(mask.shape[-1], device=mask.device)
    return mask | (place[:, None] == place)


AttentionInterface.register(_WINDOWED, sdpa_attention_forward)
AttentionMaskInterface.register(_WINDOWED, _windowed_mask)

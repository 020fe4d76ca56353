"""Padding-free execution: the tokens of all rows run as one sequence in which each row attends to itself.

Padding then costs no arithmetic. BERT, RoBERTa, XLM-R, DistilBERT and ModernBERT support it. DeBERTa-v2 and MPNet run
padded: their attention code adds a bias for every pair of positions.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from shared_model.types import Device, Precision

#: The name under which this attention is registered. No mask function has this name, so transformers makes no masks.
ATTENTION = "tandem_packed"

_MODELS = {"bert", "distilbert", "roberta", "xlm-roberta", "modernbert"}


def possible(config: PretrainedConfig, precision: Precision, device: Device) -> bool:
    """Whether this model can run without padding on this device; called once, when an engine is opened.

    On CUDA flash attention needs half precision, compute capability 8.0 and a head size that is a multiple of 8, up to
    256.
    """
    if config.model_type not in _MODELS or getattr(config, "is_decoder", False):
        return False
    if device is Device.CPU:
        return True
    head = config.hidden_size // config.num_attention_heads
    half = precision in (Precision.FP16, Precision.BF16)
    return half and head % 8 == 0 and head <= 256 and torch.cuda.get_device_capability() >= (8, 0)


@dataclass(frozen=True)
class Packing:
    """Positions of a batch's tokens. `index`: int64 (tokens of all rows,), indices into the flattened rectangle.
    `bounds`: int32 (rows + 1,), start and end of each row in `index`. `lengths`: tokens of each row."""

    index: Tensor
    bounds: Tensor
    lengths: tuple[int, ...]

    @classmethod
    def from_mask(cls, mask: NDArray[np.int64], at: torch.device) -> "Packing":
        # On the CPU: reading lengths from the device would stall its queue in the middle of a batch.
        lengths = mask.sum(axis=1)
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        index = np.flatnonzero(mask)
        return cls(torch.from_numpy(index).to(at), torch.from_numpy(bounds).to(at), tuple(lengths.tolist()))


class PackedEncoder(nn.Module):
    """Replaces a classifier's base model: takes and returns rectangles, but computes tokens only."""

    def __init__(self, base: PreTrainedModel) -> None:
        super().__init__()
        # The pooler reads the first token of each row, so it runs after unpacking.
        self.pooler = getattr(base, "pooler", None)
        base.pooler = None
        self.base = base

    def forward(
        self,
        input_ids: Tensor,
        packing: Packing,
        token_type_ids: Tensor | None = None,
        **_: object,
    ) -> BaseModelOutputWithPooling:
        def pack(rectangle: Tensor) -> Tensor:
            return rectangle.flatten()[packing.index][None]

        types = {} if token_type_ids is None else {"token_type_ids": pack(token_type_ids)}
        packed = {"input_ids": pack(input_ids), "position_ids": pack(_positions(self.base, input_ids)), **types}
        hidden = self.base(**packed, packing=packing).last_hidden_state[0]
        unpacked = hidden.new_zeros(input_ids.numel(), hidden.shape[-1]).index_copy(0, packing.index, hidden)
        unpacked = unpacked.view(*input_ids.shape, -1)
        return BaseModelOutputWithPooling(unpacked, self.pooler(unpacked) if self.pooler else None)


def _positions(base: PreTrainedModel, ids: Tensor) -> Tensor:
    """Positions (rows, tokens) as the base model numbers them: from 0, or by its own rule from the ids (RoBERTa)."""
    embeddings = base.embeddings
    if hasattr(embeddings, "create_position_ids_from_input_ids"):
        positions: Tensor = embeddings.create_position_ids_from_input_ids(ids, embeddings.padding_idx)
        return positions
    return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)


def _attend(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    *,
    packing: Packing,
    scaling: float,
    sliding_window: int | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Attention inside each row. query, key, value: (1, heads, tokens, size). Returns (1, tokens, heads, size)."""
    # transformers counts the token itself in the window; kernels count neighbours on each side.
    window = -1 if sliding_window is None else sliding_window - 1
    kernel = flash if query.is_cuda else row_by_row
    return kernel(query[0], key[0], value[0], packing, scaling, window)[None], None


def flash(query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float, window: int) -> Tensor:
    """Attention within each row, on CUDA. Arguments are (heads, tokens, size); returns (tokens, heads, size).

    A builder without a GPU cannot test it: the first process with a GPU does, see `evaluation/attestation.py`.
    """
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = (states.transpose(0, 1) for states in (query, key, value))
    longest, bounds = max(packing.lengths), packing.bounds
    attended = varlen_attn(
        query, key, value, bounds, bounds, longest, longest, scale=scaling, window_size=(window, window)
    )
    return cast("Tensor", attended)


def row_by_row(query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float, window: int) -> Tensor:
    """As `flash`, on CPU, for which torch has no kernel; the only step of packed execution that differs from CUDA."""
    rows = zip(*(torch.split(states, list(packing.lengths), dim=1) for states in (query, key, value)), strict=True)
    return torch.cat([_attention(q, k, v, scaling, window) for q, k, v in rows], dim=1).transpose(0, 1)


def _attention(query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int) -> Tensor:
    place = torch.arange(query.shape[1])
    near = None if window < 0 else (place[:, None] - place).abs() <= window
    return nn.functional.scaled_dot_product_attention(
        query[None], key[None], value[None], attn_mask=near, scale=scaling
    )[0]


AttentionInterface.register(ATTENTION, _attend)

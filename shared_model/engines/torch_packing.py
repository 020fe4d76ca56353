"""Padding-free execution: the tokens of all rows run as one sequence in which each row attends to itself.

Padding then costs no arithmetic, and texts of any lengths run together. BERT, RoBERTa, XLM-R, DistilBERT and ModernBERT
support it. DeBERTa-v2 and MPNet run padded: their attention code adds a bias for every pair of positions.
"""

from dataclasses import dataclass
from functools import cached_property
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
    """How the tokens of a batch belong to rows. `bounds`: int32 (rows + 1,), start and end of each row. `lengths`:
    tokens of each row, on the host: to read them from the device would stall its queue in the middle of a batch.

    `padded`: `lengths` are those with padding, which in `bounds` is a row of its own behind each row, perhaps without
    tokens, and is not read.
    """

    bounds: Tensor
    lengths: tuple[int, ...]
    padded: bool = False

    @cached_property
    def starts(self) -> Tensor:
        """(tokens,): where the row of each token starts."""
        return self.bounds[:-1].long().repeat_interleave(self.bounds.diff(), output_size=sum(self.lengths))

    @cached_property
    def longest(self) -> int:
        """Once a batch: each layer asks."""
        return max(self.lengths)


class PackedEncoder(nn.Module):
    """Replaces a classifier's base model. Takes (1, tokens of all rows); returns rows of one vector each, pooled as the
    model would pool its tokens: what reads them then need not know how they ran."""

    def __init__(self, base: PreTrainedModel, pooling: str) -> None:
        super().__init__()
        self.pooling = pooling
        # The pooler reads the first token of each row, so it runs after pooling.
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
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        positions = _positions(self.base, input_ids[0], packing)[None]
        hidden = self.base(input_ids=input_ids, position_ids=positions, packing=packing, **types).last_hidden_state[0]
        rows = self._pool(hidden, packing)[:, None]
        return BaseModelOutputWithPooling(rows, self.pooler(rows) if self.pooler else None)

    def _pool(self, hidden: Tensor, packing: Packing) -> Tensor:
        step = 2 if packing.padded else 1
        if self.pooling == "cls":
            return hidden[packing.bounds[:-1:step]]
        # unsafe: else torch reads the bounds back to check them.
        mean: Tensor = torch.segment_reduce(hidden.float(), "mean", offsets=packing.bounds.long(), axis=0, unsafe=True)
        return mean[::step].to(hidden.dtype)


def padded_bounds(mask: NDArray[np.int64]) -> NDArray[np.int64]:
    """`Packing.bounds` of a padded batch, (2 · rows + 1,)."""
    rows, tokens = mask.shape
    starts = np.arange(rows) * tokens
    return np.append(np.stack([starts, starts + mask.sum(axis=1)], axis=1).ravel(), rows * tokens)


def _positions(base: PreTrainedModel, ids: Tensor, packing: Packing) -> Tensor:
    """Positions as the base model numbers them: from 0, or (RoBERTa) behind the padding id, which itself does not
    count."""
    starts = packing.starts
    if hasattr(base.embeddings, "create_position_ids_from_input_ids"):
        padding: int = base.embeddings.padding_idx
        counts = ids.ne(padding).long()
        counted = counts.cumsum(0)
        before = (counted - counts)[starts]
        return (counted - before) * counts + padding
    return torch.arange(len(ids), device=ids.device) - starts


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
    longest, bounds = packing.longest, packing.bounds
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

"""Layers that multiply 8-bit numbers, as a GPU does faster than in FP16: weights are scaled once, what comes in each
time."""

import copy

import torch
from torch import Tensor, nn

from shared_model.engines.torch_engine import TorchEngine
from shared_model.engines.torch_model import layers_of
from shared_model.types import Device

INT8, FP8 = torch.int8, torch.float8_e4m3fn
#: The largest number of each.
_MOST = {INT8: 127.0, FP8: 448.0}
#: Compute capability from which a GPU multiplies each.
SINCE = {INT8: (8, 0), FP8: (8, 9)}


class NarrowLinear(nn.Module):
    """A linear layer whose rows have a scale each in INT8, and all of them one in FP8."""

    def __init__(self, whole: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.bias = dtype, whole.bias
        self.weight, self.scale = self._narrowed(whole.weight)

    def forward(self, states: Tensor) -> Tensor:
        narrow, scale = self._narrowed(states.flatten(0, -2))
        if self.dtype is INT8:
            product = (torch._int_mm(narrow, self.weight.t()) * scale * self.scale.t()).to(states.dtype)
        else:
            product = torch._scaled_mm(narrow, self.weight.t(), scale, self.scale, out_dtype=states.dtype)
        return (product + self.bias).unflatten(0, states.shape[:-1])

    def _narrowed(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        whole, most = rows.float(), _MOST[self.dtype]
        largest = whole.abs().amax(1, keepdim=True) if self.dtype is INT8 else whole.abs().amax()
        scale = largest.clamp(min=1e-6) / most
        scaled = (whole / scale).clamp(-most, most)
        return (scaled.round() if self.dtype is INT8 else scaled).to(self.dtype), scale


def narrowed(engine: TorchEngine, dtype: torch.dtype) -> TorchEngine:
    """The same engine with the linear layers of its encoder in 8 bits."""
    other = copy.copy(engine)
    other._model = copy.deepcopy(engine._model)
    _, layers = layers_of(other._model)
    for parent in list(layers.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear):
                narrow = NarrowLinear(child, dtype)
                if engine.device is Device.CUDA:
                    # Else each step of the scaling is a kernel of its own.
                    narrow.compile(dynamic=True)
                setattr(parent, name, narrow)
    return other

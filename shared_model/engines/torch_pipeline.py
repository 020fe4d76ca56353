"""A torch model in stages: each GPU, or group of cores, holds and computes some of the layers.

The model's own code runs; hooks on its layers take the call to the stage of the next one. On CUDA hidden states go from
GPU to GPU, without the host.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from shared_model.batches import Batch, Batching, Finished, PackedBatch
from shared_model.engines.stages import Groups, Stages, Walk, balanced
from shared_model.engines.torch_engine import DTYPE, hardware
from shared_model.engines.torch_model import layers_of, load_module
from shared_model.engines.whole_device import WholeDevice
from shared_model.errors import ReleaseError
from shared_model.types import Device, Precision

#: A text as costs are measured on, in tokens; the first run warms up.
_TOKENS, _RUNS = 32, 3
_BULK_TOKENS = 2048


class TorchPipeline(WholeDevice):
    """See `shared_model.engine.Engine`. As many calls run at once as there are stages."""

    batching = Batching.BUCKETS
    ahead = 0

    def __init__(
        self, files: Mapping[str, bytes], precision: Precision, groups: Groups, gpus: Sequence[int] = ()
    ) -> None:
        """`groups`: the cores of each stage; `gpus`: a number for each, empty on CPU. Raises: ReleaseError for a model
        of fewer layers."""
        self.precision, self.streams = precision, len(groups)
        self.device = Device.CUDA if gpus else Device.CPU
        self._places = [torch.device("cuda", number) for number in gpus] or [torch.device("cpu")] * len(groups)
        self._stages = Stages(groups)
        self._call = threading.local()
        model = load_module(files)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(DTYPE[precision])
        _, layers = layers_of(model)
        if len(layers) < len(groups):
            raise ReleaseError(f"{len(groups)} stages are more than the model's {len(layers)} layers")
        self._model = model
        self._place(layers)
        self.hardware = f"{len(groups)} of {hardware(self._places[0])}"

    def bulk_tokens(self) -> int:
        return _BULK_TOKENS

    def beside(self) -> None:
        """None: calls go from stage to stage in turn."""

    def start(self, batch: Batch) -> Finished:
        if isinstance(batch, PackedBatch):
            raise TypeError("a pipeline reads padded batches")
        began, types = time.perf_counter(), [] if batch.types is None else [batch.types]
        with self._stages.walk() as walk, torch.inference_mode():
            self._call.walk = walk
            walk.enter(0)
            inputs = [torch.from_numpy(array).to(self._places[0]) for array in (batch.ids, batch.mask, *types)]
            raw = self._model(*inputs).cpu().numpy()
        return Finished(raw, time.perf_counter() - began)

    def close(self) -> None:
        del self._model

    def _place(self, layers: nn.ModuleList) -> None:
        """Give each layer to a stage; what runs before and behind them is the first one's."""
        firsts, own = [0, *balanced(_shares(self._model, layers), self.streams)], list(layers)
        # Without its layers: all of them together may not fit.
        del layers[:]
        self._model.to(self._places[0])
        layers.extend(own)
        for number, layer in enumerate(layers):
            stage = sum(first <= number for first in firsts) - 1
            layer.to(self._places[stage])
            entered = stage if number in firsts[1:] else None
            layer.register_forward_pre_hook(partial(self._enter, entered, self._places[stage]), with_kwargs=True)
        layers[-1].register_forward_hook(lambda _module, _args, found: _moved(found, self._places[0]))

    def _enter(
        self, stage: int | None, place: torch.device, _module: nn.Module, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        if stage is not None:
            walk: Walk = self._call.walk
            walk.enter(stage)
        return _moved(args, place), _moved(kwargs, place)


def _moved(values: Any, place: torch.device) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.to(place, non_blocking=True), values)


def _shares(model: nn.Module, layers: nn.ModuleList) -> list[float]:
    """Of the time of a call, what has passed when each layer is done."""
    ids = torch.ones(1, _TOKENS, dtype=torch.int64)
    ended: list[float] = []
    hooks = [it.register_forward_hook(lambda *_: ended.append(time.perf_counter())) for it in layers]
    for _ in range(_RUNS):
        ended.clear()
        began = time.perf_counter()
        with torch.inference_mode():
            model(ids, ids)
        seconds = time.perf_counter() - began
    for hook in hooks:
        hook.remove()
    return [(it - began) / seconds for it in ended]

"""FP16 on CUDA, by torch. The same code runs on CPU, slowly, for tests without a GPU."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared_model import devices
from shared_model.batches import LEAST_PACKED_TOKENS, Batch, Batching, PackedBatch, fitting_tokens
from shared_model.engines import torch_packing
from shared_model.engines.staging import Staging, event, on
from shared_model.engines.torch_model import load_module, model_config
from shared_model.engines.torch_packing import Packing
from shared_model.engines.whole_device import WholeDevice
from shared_model.errors import OutOfMemory
from shared_model.types import Device, Precision

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

DTYPE = {Precision.FP32: torch.float32, Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}

#: Tokens of a padded batch that fill a GPU.
_BUCKET_TOKENS = 16_384
#: The batch by which memory is measured, and the share of what is free that batches may take.
_PROBE_TOKENS, _PROBE_ROW, _OF_FREE = 8_192, 32, 0.8


def hardware(at: torch.device) -> str:
    """As in the contract."""
    if at.type == "cpu":
        return str(Device.CPU)
    properties = torch.cuda.get_device_properties(at)
    return f"{properties.name}, {properties.total_memory} bytes, driver {devices.cuda_driver()}"


def use_gpu(number: int) -> None:
    torch.cuda.set_device(number)


class TorchEngine(WholeDevice):
    """See `shared_model.engine.Engine`. On CUDA it stays on the opening thread's GPU, whichever thread calls it."""

    ahead = 1

    def __init__(
        self, files: Mapping[str, bytes], precision: Precision, device: Device, mesh: "DeviceMesh | None" = None
    ) -> None:
        """`mesh`: the ranks that compute each batch together, of which this process is one."""
        self.precision = precision
        self.device = device
        self._at = torch.device("cuda", torch.cuda.current_device()) if device is Device.CUDA else torch.device("cpu")
        packs = torch_packing.possible(model_config(json.loads(files["config.json"])), precision, device)
        self.batching = Batching.PACKED if packs else Batching.BUCKETS
        model = load_module(files, packs)
        for parameter in model.parameters():
            # Parameters only: buffers hold positions and rotations, which need full precision.
            parameter.data = parameter.data.to(DTYPE[precision])
        if mesh:
            from shared_model.engines import torch_sharding

            # Before it moves: the whole model may not fit the device.
            torch_sharding.shard(model, mesh)
        self._model = model.to(self._at)
        self._staging = Staging(self._at)
        self._one_at_a_time = threading.Lock()

    @property
    def hardware(self) -> str:
        return hardware(self._at)

    def bulk_tokens(self) -> int:
        if self.batching is Batching.BUCKETS:
            return _BUCKET_TOKENS
        if self.device is Device.CPU:
            return LEAST_PACKED_TOKENS
        lengths = np.full(_PROBE_TOKENS // _PROBE_ROW, _PROBE_ROW, np.int64)
        probe = PackedBatch(np.ones(_PROBE_TOKENS, np.int64), lengths)
        with on(self._at):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self.start(probe).result()
            needed = torch.cuda.max_memory_allocated() - before
            torch.cuda.empty_cache()
            free, _ = torch.cuda.mem_get_info()
        return fitting_tokens(_OF_FREE * free, needed / _PROBE_TOKENS)

    def start(self, batch: Batch) -> "_Running":
        try:
            with self._one_at_a_time, on(self._at), torch.inference_mode():
                return self._start(batch)
        except torch.OutOfMemoryError as error:
            problem = str(error).partition(". ")[0]
        # After the except clause: the exception's frames no longer hold tensors.
        torch.cuda.empty_cache()
        raise OutOfMemory(f"{batch}: {problem}")

    def _start(self, batch: Batch) -> "_Running":
        arrays, compute = self._call(batch)
        copied, slot = self._staging.copy(arrays)
        began, ended = event(self._at, timing=True), event(self._at, timing=True)
        began.record()
        raw = compute(copied)
        # Pinned, so that the copy does not wait for the computation.
        found = torch.empty(raw.shape, dtype=raw.dtype, pin_memory=self.device is Device.CUDA)
        found.copy_(raw, non_blocking=True)
        ended.record()
        slot.computed.record()
        return _Running(found, began, ended)

    def _call(self, batch: Batch) -> tuple[list[NDArray[np.int64]], Callable[[list[Tensor]], Tensor]]:
        """A batch's arrays to copy, and the model's call on the copies."""
        if self.batching is Batching.BUCKETS:
            if isinstance(batch, PackedBatch):
                raise TypeError("this model reads padded batches")
            types = [] if batch.types is None else [batch.types]
            return [batch.ids, batch.mask, *types], lambda copied: self._model(*copied)
        packed = batch if isinstance(batch, PackedBatch) else PackedBatch.of_padded(batch)
        bounds, lengths = np.concatenate([[0], np.cumsum(packed.lengths)]), tuple(packed.lengths.tolist())
        types = [] if packed.types is None else [packed.types[None]]

        def compute(copied: list[Tensor]) -> Tensor:
            bounds, ids, *types = copied
            # Each row is one vector when it leaves the encoder.
            mask = torch.ones(len(lengths), 1, dtype=torch.int64, device=self._at)
            raw: Tensor = self._model(ids, mask, types[0] if types else None, Packing(bounds.int(), lengths))
            return raw

        return [bounds, packed.ids[None], *types], compute

    def close(self) -> None:
        del self._model, self._staging
        if self.device is Device.CUDA:
            torch.cuda.empty_cache()


@dataclass(frozen=True)
class _Running:
    """`raw` holds the outputs once `ended` is over."""

    raw: Tensor
    began: Any
    ended: Any

    @property
    def seconds(self) -> float:
        return float(self.began.elapsed_time(self.ended)) / 1e3

    def result(self) -> NDArray[np.float32]:
        self.ended.synchronize()
        return np.asarray(self.raw.numpy(), dtype=np.float32)

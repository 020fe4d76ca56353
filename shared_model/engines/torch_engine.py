"""FP16 on CUDA, by torch. The same code runs on CPU, slowly, for tests without a GPU."""

import contextlib
import copy
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared_model import devices
from shared_model.batches import LEAST_PACKED_TOKENS, Batch, Batching, PackedBatch, fitting_tokens
from shared_model.encoding import TokenBatch
from shared_model.engines import torch_packing
from shared_model.engines.staging import Staging, event, on
from shared_model.engines.torch_graphs import Call, CudaStreams, Graphs, Streams, give_memory_back
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
#: How near a recorded call's raw outputs are to a launched one's, which half precision rounds differently.
_LIKE = 0.05


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
        self,
        files: Mapping[str, bytes],
        precision: Precision,
        device: Device,
        mesh: "DeviceMesh | None" = None,
        streams: Callable[[torch.device], Streams] | None = None,
    ) -> None:
        """`mesh`: the ranks that compute each batch together, of which this process is one. `streams`: those of a
        device that records calls; by default CUDA's."""
        self.precision = precision
        self.device = device
        self._at = torch.device("cuda", torch.cuda.current_device()) if device is Device.CUDA else torch.device("cpu")
        config = model_config(json.loads(files["config.json"]))
        packs = torch_packing.possible(config, precision, device)
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
        self._typed = getattr(config, "type_vocab_size", 0) > 1
        self._open_streams = streams or (CudaStreams if device is Device.CUDA else None)
        self._streams: Streams | None = None
        self._graphs: Graphs | None = None
        #: Of this engine's calls: the thread's own, until a model serves.
        self._stream: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext

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
            give_memory_back()
            free, _ = torch.cuda.mem_get_info()
        return fitting_tokens(_OF_FREE * free, needed / _PROBE_TOKENS)

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        """As in the contract; on a GPU each shape is recorded besides, and shown to say what a launched call does."""
        self._serve()
        for rows, tokens in shapes:
            batch = TokenBatch(np.ones((rows, tokens), np.int64), np.ones((rows, tokens), np.int64))
            if self._graphs:
                with self._one_at_a_time, on(self._at), torch.inference_mode(), self._stream():
                    self._record(self._graphs, batch)
            self.score(batch)

    def _record(self, graphs: Graphs, batch: TokenBatch) -> None:
        shape = batch.ids.shape
        if graphs.record(shape, *self._call(batch, fixed=True)):
            # A number of the host that holds for full rows alone shows in shorter ones.
            lengths = 1 + np.arange(batch.rows) % -(-batch.tokens // 2)
            shorter = TokenBatch(batch.ids, (np.arange(batch.tokens) < lengths[:, None]).astype(np.int64))
            repeated, launched = self._repeat(graphs, shorter).result(), self._launch(shorter).result()
            if not np.allclose(repeated, launched, rtol=_LIKE, atol=_LIKE):
                graphs.drop(shape, f"its outputs differ by {np.abs(repeated - launched).max():.3g}")

    def beside(self) -> "TorchEngine | None":
        self._serve()
        if not self._streams:
            return None
        other = copy.copy(self)
        other._staging, other._one_at_a_time = Staging(self._at), threading.Lock()
        other._graphs, other._stream = None, self._streams.yielding
        return other

    def _serve(self) -> None:
        if self._open_streams and not self._streams:
            with on(self._at):
                self._streams = self._open_streams(self._at)
            self._graphs, self._stream = Graphs(self._streams, self._at), self._streams.urgent

    def start(self, batch: Batch) -> "_Running":
        try:
            with self._one_at_a_time, on(self._at), torch.inference_mode(), self._stream():
                return self._start(batch)
        except torch.OutOfMemoryError as error:
            problem = str(error).partition(". ")[0]
        # After the except clause: the exception's frames no longer hold tensors.
        give_memory_back()
        raise OutOfMemory(f"{batch}: {problem}")

    def _start(self, batch: Batch) -> "_Running":
        if self._graphs and isinstance(batch, TokenBatch) and self._graphs.holds(batch.ids.shape):
            return self._repeat(self._graphs, batch)
        return self._launch(batch)

    def _repeat(self, graphs: Graphs, batch: TokenBatch) -> "_Running":
        began, ended = event(self._at, timing=True), event(self._at, timing=True)
        arrays, _ = self._call(batch, fixed=True)
        began.record()
        return self._fetched(graphs.run(batch.ids.shape, arrays), began, ended)

    def _launch(self, batch: Batch) -> "_Running":
        began, ended = event(self._at, timing=True), event(self._at, timing=True)
        arrays, compute = self._call(batch)
        copied, slot = self._staging.copy(arrays)
        began.record()
        running = self._fetched(compute(copied), began, ended)
        slot.computed.record()
        return running

    def _fetched(self, raw: Tensor, began: Any, ended: Any) -> "_Running":
        # Pinned, so that the copy does not wait for the computation.
        found = torch.empty(raw.shape, dtype=raw.dtype, pin_memory=self._at.type != "cpu")
        found.copy_(raw, non_blocking=True)
        ended.record()
        return _Running(found, began, ended)

    def _call(self, batch: Batch, fixed: bool = False) -> tuple[list[NDArray[np.int64]], Call]:
        """A batch's arrays to copy, and the model's call on the copies. `fixed`: of a padded batch, with shapes and
        numbers on the host that depend on its shape alone."""
        types = [] if batch.types is None else [batch.types]
        if fixed and self._typed:
            types = types or [np.zeros_like(batch.ids)]
        if self.batching is Batching.BUCKETS:
            if isinstance(batch, PackedBatch):
                raise TypeError("this model reads padded batches")
            return [batch.ids, batch.mask, *types], lambda copied: self._model(*copied)
        if fixed and isinstance(batch, TokenBatch):
            arrays = [torch_packing.padded_bounds(batch.mask), batch.ids.reshape(1, -1)]
            lengths = (batch.tokens,) * batch.rows
            return [*arrays, *(it.reshape(1, -1) for it in types)], self._packed_call(lengths, padded=True)
        packed = batch if isinstance(batch, PackedBatch) else PackedBatch.of_padded(batch)
        bounds = np.concatenate([[0], np.cumsum(packed.lengths)])
        types = [] if packed.types is None else [packed.types[None]]
        return [bounds, packed.ids[None], *types], self._packed_call(tuple(packed.lengths.tolist()), padded=False)

    def _packed_call(self, lengths: tuple[int, ...], padded: bool) -> Call:
        def compute(copied: list[Tensor]) -> Tensor:
            bounds, ids, *types = copied
            # Each row is one vector when it leaves the encoder.
            mask = torch.ones(len(lengths), 1, dtype=torch.int64, device=self._at)
            packing = Packing(bounds.int(), lengths, padded)
            raw: Tensor = self._model(ids, mask, types[0] if types else None, packing)
            return raw

        return compute

    def close(self) -> None:
        del self._model, self._staging, self._graphs
        if self.device is Device.CUDA:
            give_memory_back()


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

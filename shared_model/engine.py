"""The engine contract, and the selection of an engine for a variant."""

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shared_model import cgroups, devices
from shared_model.batches import Batch, Batching, Running
from shared_model.encoding import TokenBatch
from shared_model.engines.stages import core_groups
from shared_model.trust.verified_cache import VerifiedCache
from shared_model.types import WHOLE, Device, Precision, Spread

#: τ: largest difference between a text's score alone and in any batch that `plan_batches` or a lane makes with the same
#: bucketing, or that is packed, on one device; its label differs only if the margin is below 2τ. Rows of a planned
#: batch have one padded width, at which CPU engines are bit-identical (across widths, and so between lanes and the
#: nightly run: 1.5e-2 in BF16, 2e-2 in INT8).
TAU = {Precision.FP32: 1e-4, Precision.BF16: 1e-3, Precision.INT8: 1e-3, Precision.FP16: 5e-3}


class Engine(Protocol):
    """Runs one variant on one device. Compiled and used in one process: never across a fork.

    `precision`: the compiled precision, which differs from the requested one if the device does not support that.
    `width`: threads of one call. `streams`: calls that may run at once (1 on CUDA). `batching`: the rule by which bulk
    work is cut; only an engine that declares PACKED takes packed batches. `ahead`: batches to start before the result
    of an earlier one is fetched, so that the device is never without work: 0 where `start` computes.
    """

    precision: Precision
    device: Device
    width: int
    streams: int
    batching: Batching
    ahead: int

    @property
    def hardware(self) -> str:
        """Name, memory and driver of the device: what `bulk_tokens` depends on besides the model."""

    def bulk_tokens(self) -> int:
        """Tokens of a batch that fills the device and fits its memory. Measured, which may take a second."""

    def rows(self, tokens: int, single: bool = False) -> Sequence[int]:
        """Useful batch sizes for texts of this padded width, ascending from 1. `single`: as in `score`.

        Sizes between them are hardly faster than the next smaller, or not worth the memory of another shape.
        """

    def widened(self, threads: int) -> "Engine | None":
        """The same model for one call at a time on so many threads; None if a call uses the whole device anyway. It
        compiles shapes on demand or by `specialise`; its scores are bit-identical. The caller closes it."""

    def beside(self) -> "Engine | None":
        """The same model for bulk work whose calls run beside those of this engine and yield to them; None if calls do
        not so. The caller closes it."""

    def specialise(self, tokens: int, pairs: bool = False) -> None:
        """Compile for single texts of up to this padded width, if that makes them faster: `score` then uses it for
        `single` texts. `pairs`: also for two of them in one call, where that leaves each its bits; `rows` then says so.
        Takes some tenths of a second; calls may run meanwhile."""

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Run each (rows, tokens) shape once on every stream, so that its kernels are built before the first call; not
        batches whose first call hardly takes longer than others."""

    def start(self, batch: Batch) -> Running:
        """Begin to score a batch. A GPU computes it while the caller prepares the next one; other engines return when
        they are done. Raises: as `score`."""

    def score(self, batch: TokenBatch, single: bool = False) -> NDArray[np.float32]:
        """Raw outputs of shape (rows, width of the release's output). Blocks; call it off the event loop. Safe to call
        from several threads; calls beyond `streams` wait. Raises: OutOfMemory if the GPU lacks memory.

        `single`: each text gets the bits of one alone on the graph specialised for its width. Those round differently
        (INT8: up to 4e-2 of probability): mixed with other batches, a text's score would depend on its batch. Takes
        only as many rows as `rows` tells.
        """

    def close(self) -> None:
        """Free the device's memory. The engine cannot be used afterwards."""


def use_gpu(number: int) -> None:
    """Select the GPU on which this thread opens engines."""
    from shared_model.engines.torch_engine import use_gpu

    use_gpu(number)


def open_engine(
    precision: Precision,
    device: Device,
    files: Mapping[str, bytes],
    threads: int,
    streams: int = 1,
    spread: Spread = WHOLE,
    cache: VerifiedCache | None = None,
) -> Engine:
    """Compile a variant from its verified bytes.

    `files` maps the variant's file names to their contents. `threads`: width on CPU. `streams`: concurrent calls on
    CPU. `cache`: of compiled graphs, on CPU. All three are ignored on CUDA. Raises: ReleaseError for a model that
    cannot be spread so.
    """
    # Engines import their frameworks (seconds, hundreds of MB), so a process loads only the one it runs.
    if spread.ranks > 1:
        from shared_model.engines.rank_group import Split
        from shared_model.engines.tensor_parallel import TensorParallelEngine

        return TensorParallelEngine(files, Split(precision, device, spread.ranks, threads, spread.gpus))
    if spread.stages > 1:
        return _open_pipeline(precision, device, files, spread)
    if device is Device.CUDA or precision is Precision.FP16:
        from shared_model.engines.torch_engine import TorchEngine

        return TorchEngine(files, precision, device)
    from shared_model.engines.openvino_cpu import OpenVinoEngine, read_model

    return OpenVinoEngine(read_model(files), precision, threads, streams, cache)


def _open_pipeline(precision: Precision, device: Device, files: Mapping[str, bytes], spread: Spread) -> Engine:
    nodes = devices.numa_nodes(devices.usable_cores(os.sched_getaffinity(0), cgroups.limits().cpus))
    cores = list(itertools.chain(*nodes))
    if device is Device.CUDA or precision is Precision.FP16:
        from shared_model.engines.torch_pipeline import TorchPipeline

        if device is Device.CUDA:
            # Launching takes any core.
            gpus = spread.gpus or tuple(range(spread.stages))
            return TorchPipeline(files, precision, [cores] * spread.stages, gpus)
        return TorchPipeline(files, precision, core_groups(cores, spread.stages))
    from shared_model.engines.openvino_cpu import read_model
    from shared_model.engines.openvino_pipeline import OpenVinoPipeline

    groups = core_groups(cores, spread.stages)
    return OpenVinoPipeline(read_model(files), precision, groups, near=len(nodes) > 1)

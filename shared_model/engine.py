"""The engine contract, and the one place that picks an engine for a variant."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shared_model.encoding import TokenBatch
from shared_model.types import Device, Precision

#: τ: how far a score of one text may differ between the text alone and the text in any batch that `plan_batches` or a
#: lane makes on the same ladder of widths, on one device; its label differs only where the margin is under 2τ. Rows of
#: such a batch have one padded width, at which CPU engines give the same bits (across widths, and so between the
#: ladders of the lanes and of the nightly run: 1.5e-2 in BF16, 2e-2 in INT8).
TAU = {Precision.FP32: 1e-4, Precision.BF16: 1e-3, Precision.INT8: 1e-3, Precision.FP16: 5e-3}


class Engine(Protocol):
    """Runs one variant on one device. Compiled by, and used in, one process: never across a fork.

    `precision` is what was compiled, which a device without the asked-for arithmetic may lower or raise.
    `width` is the number of threads one call uses, `streams` the number of calls that may run at once (1 on CUDA).
    """

    precision: Precision
    device: Device
    width: int
    streams: int

    def rows(self, tokens: int) -> Sequence[int]:
        """Sizes of batches worth making of texts of this padded width, ascending from 1.

        What lies between gains nothing over the next smaller, or is not worth the memory of one more shape.
        """

    def widened(self, threads: int) -> "Engine | None":
        """The same model for one call at a time on so many threads, None where a call has all there is anyway. Nothing
        is compiled in it yet but what it is specialised for; its scores are the same bits. Closed apart."""

    def specialise(self, tokens: int) -> None:
        """Compile for single texts of up to this padded width, where that makes them faster: `score` runs them so from
        now on if it is told that they are `single`. Takes some tenths of a second; calls may run meanwhile."""

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Run each (rows, tokens) shape once on every stream, so that no caller pays for building its kernels."""

    def score(self, batch: TokenBatch, single: bool = False) -> NDArray[np.float32]:
        """Raw outputs of shape (rows, width of the release's Output). Blocks; call it off the event loop. Safe to call
        from several threads; more calls than streams wait for each other. Raises: OutOfMemory where a GPU has no room.

        `single`: for a caller all of whose batches are single texts. Specialised code rounds otherwise (INT8: up to
        4e-2 of probability), so whoever mixes it with batches lets an answer depend on its company.
        """

    def close(self) -> None:
        """Free the device's memory. The engine cannot be used afterwards."""


def use_gpu(number: int) -> None:
    """Engines that this thread opens on CUDA from now on are on this GPU."""
    from shared_model.engines.torch_engine import use_gpu

    use_gpu(number)


def open_engine(
    precision: Precision, device: Device, files: Mapping[str, bytes], threads: int, streams: int = 1
) -> Engine:
    """Compile a variant from its verified bytes.

    `files` maps the variant's file names to their contents. `threads` is the width on CPU, `streams` how many calls are
    to run at once there; both are ignored on CUDA.
    """
    # Engines import their frameworks (seconds, hundreds of MB), so a process loads only the one it runs.
    if device is Device.CUDA or precision is Precision.FP16:
        from shared_model.engines.torch_engine import TorchEngine

        return TorchEngine(files, precision, device)
    from shared_model.engines.openvino_cpu import OpenVinoEngine, read_model

    return OpenVinoEngine(read_model(files), precision, threads, streams)

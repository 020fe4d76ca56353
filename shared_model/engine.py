"""The engine contract, and the one place that picks an engine for a variant."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shared_model.encoding import TokenBatch
from shared_model.types import Device, Precision


class Engine(Protocol):
    """Runs one variant on one device. Compiled by, and used in, one process: never across a fork.

    `precision` is what was compiled, which a device without the asked-for arithmetic may lower or raise.
    `width` is the number of threads one call uses (1 on CUDA).
    """

    precision: Precision
    device: Device
    width: int

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Run each (rows, tokens) shape once, so that no caller pays for building its kernels."""

    def score(self, batch: TokenBatch) -> NDArray[np.float32]:
        """Logits of shape (rows, labels). Blocks; call it off the event loop."""

    def close(self) -> None:
        """Free the device's memory. The engine cannot be used afterwards."""


def open_engine(precision: Precision, device: Device, files: Mapping[str, bytes], threads: int) -> Engine:
    """Compile a variant from its verified bytes.

    `files` maps the variant's file names to their contents. `threads` is the width on CPU; ignored on CUDA.
    """
    # Engines import their frameworks (seconds, hundreds of MB), so a process loads only the one it runs.
    if device is Device.CUDA or precision is Precision.FP16:
        from shared_model.engines.torch_encoder import TorchEngine

        return TorchEngine(files, precision, device)
    from shared_model.engines.openvino_cpu import OpenVinoEngine

    return OpenVinoEngine(files, precision, threads)


def probabilities(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Softmax over the last axis, in fp32 whatever computed the logits."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True), dtype=np.float32)


def top_k(scores: NDArray[np.float32], k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Best `k` labels of each row: (indices, probabilities), both (rows, min(k, labels)), best first; ties by index."""
    order = np.argsort(-scores, axis=-1, kind="stable")[:, :k]
    return order.astype(np.int32), np.take_along_axis(scores, order, axis=-1)

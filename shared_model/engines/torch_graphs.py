"""Calls that a GPU repeats as recorded, and the two streams of a model that serves.

For few texts a GPU computes for less time than the host needs to launch the kernels of a call one by one. A CUDA graph
launches them all at once, for one shape, on buffers that stay where they are. It runs on a stream whose kernels go
before those of the other stream, on which bulk work computes meanwhile.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared_model.engines.staging import event

#: A graph takes about 1 MB of a GPU's memory, and the buffers of all share one pool. The warm-up goes from small
#: shapes, which gain most, to large ones.
MOST_GRAPHS = 128
#: Of torch: lower goes first. These are the two that every GPU has.
_HIGH, _LOW = -1, 0
#: Calls before one is recorded: kernels load, and libraries get the memory that they work in.
_FIRST_CALLS = 2

Call = Callable[[list[Tensor]], Tensor]

#: While torch records a call, no other thread of the process may record one, wait for the whole device, or give its
#: memory back.
_RECORDING = threading.Lock()

log = logging.getLogger(__name__)


def give_memory_back() -> None:
    """Free the memory that torch holds on the current GPU without using it."""
    with _RECORDING:
        torch.cuda.empty_cache()


class Streams(Protocol):
    """The two streams, of which each thread makes one current before it computes."""

    def urgent(self) -> AbstractContextManager[object]: ...

    def yielding(self) -> AbstractContextManager[object]: ...

    def record(self, call: Callable[[Tensor], Tensor], inputs: Tensor) -> tuple[Callable[[], None], Tensor]:
        """A function that repeats `call(inputs)` on the urgent stream, which is current, with what `inputs` holds then;
        and the tensor that holds its result. Raises: RuntimeError where the call cannot be recorded."""


class CudaStreams:
    """See `Streams`."""

    def __init__(self, at: torch.device) -> None:
        self._at = at
        self._urgent, self._yielding = (torch.cuda.Stream(at, it) for it in (_HIGH, _LOW))  # type: ignore[no-untyped-call]
        # Shared: a result is copied, in the order of the stream, before another graph overwrites it.
        self._pool = torch.cuda.graph_pool_handle()
        for stream in (self._urgent, self._yielding):
            # On which the weights came.
            stream.wait_stream(torch.cuda.current_stream(at))

    def urgent(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._urgent)

    def yielding(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._yielding)

    def record(self, call: Callable[[Tensor], Tensor], inputs: Tensor) -> tuple[Callable[[], None], Tensor]:
        for _ in range(_FIRST_CALLS):
            call(inputs)
        graph = torch.cuda.CUDAGraph()
        # Not by torch.cuda.graph, which first waits for the whole device and frees its memory: others serve meanwhile.
        with _RECORDING:
            try:
                # Of this thread: others may allocate.
                graph.capture_begin(self._pool, capture_error_mode="thread_local")
                try:
                    result = call(inputs)
                finally:
                    graph.capture_end()
            except RuntimeError:
                # Of a call that the driver refused to record, torch does not end this itself, and the process could
                # never free memory again. It raises where that is done.
                with contextlib.suppress(RuntimeError):
                    torch._C._cuda_endAllocateToPool(self._at.index, self._pool)
                    torch._C._cuda_releasePool(self._at.index, self._pool)
                raise
        return graph.replay, result


@dataclass(frozen=True)
class _Graph:
    """`host`, `inputs`: all arrays of a call one behind the other, pinned and on the device; `copied`: the latest copy
    between them."""

    host: Tensor
    inputs: Tensor
    copied: Any
    replay: Callable[[], None]
    result: Tensor


class Graphs:
    """Recorded calls by shape, (rows, tokens). Calls come one at a time, with the urgent stream current."""

    def __init__(self, streams: Streams, at: torch.device, most: int = MOST_GRAPHS) -> None:
        self._streams, self._at, self._most = streams, at, most
        self._of: dict[tuple[int, int], _Graph] = {}
        self._failed = self._missed = False

    def record(self, shape: tuple[int, int], arrays: Sequence[NDArray[np.int64]], call: Call) -> bool:
        """Record `call` for batches of this shape, whose arrays have the shapes of these. False where that was done
        before, cannot be done, or would take too much memory."""
        if shape in self._of or self._failed or len(self._of) >= self._most:
            return False
        host = torch.empty(sum(array.size for array in arrays), dtype=torch.int64, pin_memory=self._at.type != "cpu")
        np.concatenate([array.ravel() for array in arrays], out=host.numpy())
        inputs = torch.empty(len(host), dtype=torch.int64, device=self._at)
        inputs.copy_(host)
        sizes, shapes = [array.size for array in arrays], [array.shape for array in arrays]

        def on_views(inputs: Tensor) -> Tensor:
            views = torch.split(inputs, sizes)
            return call([view.view(shape) for view, shape in zip(views, shapes, strict=True)])

        try:
            replay, result = self._streams.record(on_views, inputs)
        except RuntimeError as error:
            # torch raises one more error when it ends a recording that has failed.
            first = error.__context__ or error
            self._fail(shape, str(first).partition("\n")[0])
            return False
        self._of[shape] = _Graph(host, inputs, event(self._at), replay, result)
        return True

    def drop(self, shape: tuple[int, int], why: str) -> None:
        """Launch the calls of this shape, and record none of those that follow."""
        del self._of[shape]
        self._fail(shape, why)

    def _fail(self, shape: tuple[int, int], why: str) -> None:
        self._failed = True
        log.warning("calls of %d×%d and later shapes are not recorded: %s", *shape, why)

    def run(self, shape: tuple[int, int], arrays: Sequence[NDArray[np.int64]]) -> Tensor:
        """The result of the call for these arrays, overwritten by the next one. Raises: KeyError for a shape that is
        not recorded."""
        graph = self._of[shape]
        # The host overwrites what was copied.
        graph.copied.synchronize()
        np.concatenate([array.ravel() for array in arrays], out=graph.host.numpy())
        graph.inputs.copy_(graph.host, non_blocking=True)
        graph.copied.record()
        graph.replay()
        return graph.result

    def holds(self, shape: tuple[int, int]) -> bool:
        """Whether a call of this shape is recorded; the first one that is not, is logged."""
        if shape not in self._of and self._of and not self._missed:
            self._missed = True
            log.info("a batch of %d×%d was not recorded in the warm-up; such batches are launched call by call", *shape)
        return shape in self._of

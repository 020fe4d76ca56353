"""Two streams and a recorder without a GPU, which fail where a GPU would compute something else.

A call is recorded as a GPU does it: torch's operations, with the tensors that they read and the numbers of the host as
they were. So a call whose course depends on the host's numbers, or whose buffers are replaced, repeats the old ones.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from unittest import mock

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from shared_model.engines import torch_packing
from shared_model.engines.torch_packing import Packing

#: Fills a buffer that was read: no id, no bound and no mask.
_READ = -1


class SimulatedStreams:
    """`calls`: (stream, what it did). `broken`: the recording of so many calls fails, and of all that follow. `deaf`: a
    replay says what the call said when it was recorded."""

    def __init__(self, broken: int | None = None, deaf: bool = False) -> None:
        self.calls: list[tuple[str, str]] = []
        self._thread = threading.local()
        self._broken, self._deaf = broken, deaf
        self._recorded = 0

    def urgent(self) -> AbstractContextManager[object]:
        return self._on("urgent")

    def yielding(self) -> AbstractContextManager[object]:
        return self._on("yielding")

    @property
    def current(self) -> str:
        return getattr(self._thread, "stream", "the thread's own")

    def record(self, call: Callable[[Tensor], Tensor], inputs: Tensor) -> tuple[Callable[[], None], Tensor]:
        self._only_on_urgent("record")
        if self._recorded == self._broken:
            raise RuntimeError("operation not permitted when stream is capturing\nand a trace")
        self._recorded += 1
        with as_on_a_gpu(), mock.patch("torch.cuda.is_current_stream_capturing", return_value=True):
            recorded = call if self._deaf else make_fx(call)(inputs)
            result = recorded(inputs)
        inputs.fill_(_READ)

        def replay() -> None:
            self._only_on_urgent("replay")
            if (inputs == _READ).all():
                raise AssertionError("a replay into whose buffer nothing was copied")
            if not self._deaf:
                result.copy_(recorded(inputs))
            inputs.fill_(_READ)

        return replay, result

    def _only_on_urgent(self, what: str) -> None:
        self.calls.append((self.current, what))
        if self.current != "urgent":
            raise AssertionError(f"a {what} on {self.current} stream")

    @contextlib.contextmanager
    def _on(self, stream: str) -> Iterator[None]:
        before = self.current
        self._thread.stream = stream
        try:
            yield
        finally:
            self._thread.stream = before


@contextlib.contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Packed attention by what the device knows alone, as the kernel of a GPU."""
    with mock.patch.object(torch_packing, "row_by_row", _by_bounds):
        yield


def _by_bounds(query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float, window: int) -> Tensor:
    place = torch.arange(query.shape[1])
    row = torch.bucketize(place, packing.bounds[1:], right=True)
    near = row[:, None] == row
    if window >= 0:
        near = near & ((place[:, None] - place).abs() <= window)
    states = (query[None], key[None], value[None])
    return nn.functional.scaled_dot_product_attention(*states, attn_mask=near, scale=scaling)[0].transpose(0, 1)

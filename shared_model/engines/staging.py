"""Copies of batches to the device, ahead of its computations. On CPU the same code runs, and the copies are plain."""

import contextlib
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: One batch is copied while another computes.
_SLOTS = 2


class Staging:
    """Two buffers on the host, pinned, and two on the device, between them a stream of its own. Calls come one at a
    time."""

    def __init__(self, at: torch.device) -> None:
        self._at = at
        self._module = torch.get_device_module(at)
        with on(at):
            self._copies = self._module.Stream()
            self._slots = [_Slot(event(at), event(at)) for _ in range(_SLOTS)]

    def copy(self, arrays: Sequence[NDArray[np.int64]]) -> tuple[list[Tensor], "_Slot"]:
        """The arrays on the device, in one copy, for what the current stream computes from now on. They are overwritten
        two calls later, once the slot's `computed` is over: the caller records it."""
        slot = self._slots[0]
        self._slots.append(self._slots.pop(0))
        total = sum(array.size for array in arrays)
        current = self._module.current_stream()
        # The host overwrites what was copied, and the copy what was read.
        slot.copied.synchronize()
        if total > len(slot.host):
            self._grow(slot, total, current)
        np.concatenate([array.ravel() for array in arrays], out=slot.host.numpy()[:total])
        with self._module.stream(self._copies):
            slot.computed.wait(self._copies)
            slot.device[:total].copy_(slot.host[:total], non_blocking=True)
            slot.copied.record(self._copies)
        slot.copied.wait(current)
        views = torch.split(slot.device[:total], [array.size for array in arrays])
        return [view.view(array.shape) for view, array in zip(views, arrays, strict=True)], slot

    def _grow(self, slot: "_Slot", total: int, current: Any) -> None:
        slot.computed.synchronize()
        # To a power of two: growing waits for the device.
        size = 1 << (total - 1).bit_length()
        slot.host = torch.empty(size, dtype=torch.int64, pin_memory=self._at.type != "cpu")
        slot.device = torch.empty(size, dtype=torch.int64, device=self._at)
        # Its kernels may still use this memory. Not the whole device: another thread may record a call on it.
        self._copies.wait_stream(current)


@dataclass
class _Slot:
    """`copied`: its latest copy; `computed`: what read that last."""

    copied: Any
    computed: Any
    host: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    device: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))


class _CpuEvent:
    """CUDA's event, where everything is done when its call returns."""

    def __init__(self) -> None:
        self._at = 0.0

    def record(self, _stream: object = None) -> None:
        self._at = time.perf_counter()

    def wait(self, _stream: object = None) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, other: "_CpuEvent") -> float:
        return (other._at - self._at) * 1e3


def event(at: torch.device, timing: bool = False) -> Any:
    """An event of this device; `timing`: with `elapsed_time`."""
    if at.type == "cpu":
        return _CpuEvent()
    return torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]


def on(at: torch.device) -> AbstractContextManager[object]:
    """Make it the device of this thread."""
    return contextlib.nullcontext() if at.type == "cpu" else torch.cuda.device(at)

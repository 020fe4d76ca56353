"""A device of a launch cost and a rate, fed by the nightly run's own code, in virtual time: how busy it is kept."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from batch_job.scoring import windows
from batch_job.scoring.models import Model
from batch_job.scoring.options import ScoringOptions
from shared_model.batches import Batch, Batching
from shared_model.encoding import Encoding, InputSpec, Text
from shared_model.heads import Heads
from shared_model.output import OutputKind, OutputSpec
from shared_model.types import Device, Precision
from tests.benchmarks.devices.virtual_time import VirtualTime, in_prefetching

#: Tokenising rate ÷ device rate.
RATIOS = (0.1, 0.5, 0.9, 1.1, 2.0, 10.0)

_BATCH_TOKENS, _TEXT_TOKENS = 1024, 16
_WINDOWS, _WINDOW_ROWS = 4, 2048
#: Seconds of a full batch: its launch, and its tokens.
_LAUNCH, _COMPUTE = 0.05, 0.95
#: Seconds of the host and of the copy stream for a full batch; and of the caller for a window, a quarter of its
#: computation.
_HOST, _COPY, _WRITE = 0.05, 0.10, 8.0
_OUTPUT = OutputSpec(OutputKind.SINGLE_LABEL, ("a", "b"), 2)


@dataclass
class _Running:
    time: VirtualTime
    rows: int
    ends: float
    seconds: float

    def result(self) -> NDArray[np.float32]:
        self.time.wait_until(self.ends)
        return np.zeros((self.rows, 2), np.float32)


class SimulatedEngine:
    """Two staging buffers, a copy and a compute stream. `serial`: one buffer, one stream, and the host waits."""

    precision, device, width, streams = Precision.FP16, Device.CUDA, 1, 1
    batching, hardware = Batching.PACKED, "simulated"

    def __init__(self, time: VirtualTime, serial: bool) -> None:
        self._time, self._serial = time, serial
        self.ahead = 0 if serial else 1
        self._copied = 0.0
        #: When all batches have been computed.
        self.computed = 0.0
        #: When the batches that last used each buffer have been computed.
        self._buffers = deque([0.0] * (1 if serial else 2))
        self.busy = 0.0

    def start(self, batch: Batch) -> _Running:
        share = batch.size / _BATCH_TOKENS
        self._time.work(_HOST * share)
        self._copied = max(self._time.now, self._copied, self._buffers.popleft()) + _COPY * share
        seconds = _LAUNCH + _COMPUTE * share
        self.computed = max(self._copied, self.computed) + seconds
        self._buffers.append(self.computed)
        self.busy += seconds
        return _Running(self._time, batch.rows, self.computed, seconds)


class _Encoder:
    reads = InputSpec(max_tokens=512)

    def __init__(self, time: VirtualTime, tokens_per_second: float) -> None:
        self._time, self._rate = time, tokens_per_second
        self._encoding = Encoding(np.ones(_TEXT_TOKENS, np.int32), truncated=False)

    def encode_many(self, texts: Sequence[Text]) -> list[Encoding]:
        self._time.work(len(texts) * _TEXT_TOKENS / self._rate)
        return [self._encoding] * len(texts)


def busy(ratio: float, serial: bool = False, write: float = _WRITE) -> float:
    """The share of a run, from its first text to its last computation, in which the device computed. `serial`: batches
    are copied and computed one by one. `write`: seconds of the caller for a window."""
    time = VirtualTime()
    engine, encoder = SimulatedEngine(time, serial), _Encoder(time, ratio * _BATCH_TOKENS / (_LAUNCH + _COMPUTE))
    model = Model("simulated", Heads.of(_OUTPUT), encoder, engine, "cuda:0")  # type: ignore[arg-type]
    options = ScoringOptions("", "simulated", Device.CUDA, batch_tokens=_BATCH_TOKENS, deduplicate=False)
    batch = pa.record_batch({"text": ["text"] * _WINDOW_ROWS})
    batches = iter([batch] * _WINDOWS)
    rows = 0
    with in_prefetching(time):
        for window in windows.score_windows(batches, lambda it: it.column("text").to_pylist(), model, options):
            time.work(write)
            rows += len(window.scores)
    if rows != _WINDOWS * _WINDOW_ROWS:
        raise AssertionError(f"{rows} rows were scored")
    return engine.busy / engine.computed

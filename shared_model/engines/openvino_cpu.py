"""INT8, BF16 and FP32 on CPU, by OpenVINO."""

import io
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shared_model.encoding import FINE_TOKENS, TokenBatch
from shared_model.types import Device, Precision

#: INT8 models keep the operators that were not quantised in fp32.
_HINT = {Precision.INT8: "f32", Precision.BF16: "bf16", Precision.FP32: "f32"}


class OpenVinoEngine:
    """One graph for every shape, and one compiled for each specialised width of single texts, whose shapes it need not
    work out at every call (1.3 ms of a call that takes 0.7). See `shared_model.engine.Engine`."""

    device = Device.CPU

    def __init__(self, files: Mapping[str, bytes], precision: Precision, threads: int, streams: int = 1) -> None:
        self._core = ov.Core()
        self._model = self._core.read_model(io.BytesIO(files["model.xml"]), io.BytesIO(files["model.bin"]))
        self._properties = {
            "INFERENCE_PRECISION_HINT": _HINT[precision],
            "INFERENCE_NUM_THREADS": threads * streams,
            "NUM_STREAMS": streams,
            # Streams pin themselves to the first cores by default: two processes would then share one.
            "ENABLE_CPU_PINNING": False,
        }
        self.width = threads
        self.streams = streams
        self._any_shape = self._compile(self._model)
        self._single: dict[int, _Graph] = {}
        self.precision = self._any_shape.precision(precision)

    def rows(self, tokens: int) -> Sequence[int]:
        # A batch saves the fixed part of a call, 1.5 ms here, and nothing else: long texts have nothing to save.
        return (1, 4, 16, 64) if tokens <= FINE_TOKENS else (1,)

    def specialise(self, tokens: int) -> None:
        if tokens in self._single:
            return
        # A clone shares the weights.
        model = self._model.clone()
        model.reshape({port.any_name: [1, tokens] for port in model.inputs})
        graph = self._compile(model)
        graph.run_on_every_stream(_blank(1, tokens))
        self._single[tokens] = graph

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        for rows, tokens in shapes:
            self._any_shape.run_on_every_stream(_blank(rows, tokens))

    def score(self, batch: TokenBatch, single: bool = False) -> NDArray[np.float32]:
        graph = self._single.get(batch.tokens, self._any_shape) if single else self._any_shape
        return graph.run(batch)

    def close(self) -> None:
        del self._any_shape, self._single, self._model

    def _compile(self, model: ov.Model) -> "_Graph":
        return _Graph(self._core.compile_model(model, "CPU", self._properties), self.streams)


class _Graph:
    """A compiled model, and a request of its own for each call that may run at once."""

    def __init__(self, compiled: ov.CompiledModel, streams: int) -> None:
        self._compiled = compiled
        self._inputs = [port.any_name for port in compiled.inputs]
        self._all = [compiled.create_infer_request() for _ in range(streams)]
        # Appending and popping are atomic: no lock is needed.
        self._idle = deque(self._all)

    def run(self, batch: TokenBatch) -> NDArray[np.float32]:
        try:
            request = self._idle.pop()
        except IndexError:
            # More calls than streams: one more request, which waits inside for a stream.
            request = self._compiled.create_infer_request()
        try:
            result = request.infer(self._arguments(batch), share_inputs=True)
            return np.array(result[0], dtype=np.float32)
        finally:
            self._idle.append(request)

    def run_on_every_stream(self, batch: TokenBatch) -> None:
        """Nobody else may be calling."""
        # The requests read this memory until they are done.
        arguments = self._arguments(batch)
        for request in self._all:
            request.start_async(arguments, share_inputs=True)
        for request in self._all:
            request.wait()

    def precision(self, asked: Precision) -> Precision:
        """BF16 falls back to FP32 on a CPU without the instructions, silently: ask the compiled model."""
        if asked is not Precision.BF16:
            return asked
        hint = self._compiled.get_property("INFERENCE_PRECISION_HINT")
        return Precision.BF16 if hint == ov.Type.bf16 else Precision.FP32

    def _arguments(self, batch: TokenBatch) -> dict[str, NDArray[np.int64]]:
        """Its inputs, `ids`, `mask` or `types`; without types every token is of the first text."""
        types = np.zeros_like(batch.ids) if batch.types is None else batch.types
        arrays = {"ids": batch.ids, "mask": batch.mask, "types": types}
        return {name: arrays[name] for name in self._inputs}


def _blank(rows: int, tokens: int) -> TokenBatch:
    ones = np.ones((rows, tokens), np.int64)
    return TokenBatch(ones, ones)

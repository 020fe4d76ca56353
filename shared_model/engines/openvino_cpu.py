"""INT8, BF16 and FP32 on CPU, by OpenVINO."""

import io
from collections.abc import Iterable, Mapping

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shared_model.encoding import TokenBatch
from shared_model.types import Device, Precision

#: INT8 models keep the operators that were not quantised in fp32.
_HINT = {Precision.INT8: "f32", Precision.BF16: "bf16", Precision.FP32: "f32"}


class OpenVinoEngine:
    """One compiled model with one stream; see `shared_model.engine.Engine`."""

    device = Device.CPU

    def __init__(self, files: Mapping[str, bytes], precision: Precision, threads: int) -> None:
        core = ov.Core()
        model = core.read_model(io.BytesIO(files["model.xml"]), io.BytesIO(files["model.bin"]))
        self._compiled = core.compile_model(
            model,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": _HINT[precision],
                "INFERENCE_NUM_THREADS": threads,
                "NUM_STREAMS": 1,
                # Streams pin themselves to the first cores by default: two processes would then share one.
                "ENABLE_CPU_PINNING": False,
            },
        )
        self._request = self._compiled.create_infer_request()
        self._inputs = [port.any_name for port in self._compiled.inputs]
        self.precision = _compiled_precision(self._compiled, precision)
        self.width = threads

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        for shape in shapes:
            self.score(TokenBatch(np.ones(shape, np.int64), np.ones(shape, np.int64)))

    def score(self, batch: TokenBatch) -> NDArray[np.float32]:
        result = self._request.infer({name: _input(batch, name) for name in self._inputs}, share_inputs=True)
        return np.array(result[0], dtype=np.float32)

    def close(self) -> None:
        del self._request, self._compiled


def _input(batch: TokenBatch, name: str) -> NDArray[np.int64]:
    """What the graph calls `ids`, `mask` or `types`; without types every token is of the first text."""
    array: NDArray[np.int64] | None = getattr(batch, name)
    return np.zeros_like(batch.ids) if array is None else array


def _compiled_precision(compiled: ov.CompiledModel, asked: Precision) -> Precision:
    """BF16 falls back to FP32 on a CPU without the instructions, silently: ask the compiled model."""
    if asked is not Precision.BF16:
        return asked
    return Precision.BF16 if compiled.get_property("INFERENCE_PRECISION_HINT") == ov.Type.bf16 else Precision.FP32

"""An OpenVINO graph in stages. The output of one stage is the next one's input in place: nothing is copied."""

import functools
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shared_model.encoding import TokenBatch
from shared_model.engines import openvino_cutting
from shared_model.engines.openvino_cpu import Graph, MappedModel, OpenVinoEngine, arguments
from shared_model.engines.stages import Groups, Stages
from shared_model.types import Precision


class OpenVinoPipeline(OpenVinoEngine):
    """See `shared_model.engine.Engine`. A call takes as long as in one piece, and as many run at once as there are
    stages, each stage on its own cores with its own part of the weights."""

    def __init__(self, mapped: MappedModel, precision: Precision, groups: Groups, near: bool = False) -> None:
        """`near`: the weights of each stage are written by its own cores, so that they lie in their NUMA node."""
        self._stages, self._near = Stages(groups), near
        super().__init__(mapped, precision, max(map(len, groups)), len(groups))

    def widened(self, threads: int) -> None:
        """None: a wide call would need all the weights on all cores."""

    def specialise(self, tokens: int, pairs: bool = False) -> None:
        """Does nothing: what it saves is a small part of a call of a model that is worth cutting."""

    @functools.cached_property
    def _any_shape(self) -> "_StagedGraph":
        costs = openvino_cutting.measured(self._compile(self._mapped.model, 1, PERF_COUNT=True))
        parts = openvino_cutting.cut(self._mapped.model, self.streams, costs)
        return _StagedGraph([self._compile_stage(*numbered) for numbered in enumerate(parts)], self._stages)

    def _compile_stage(self, number: int, part: ov.Model) -> ov.CompiledModel:
        if not self._near:
            return self._compile(part, 1)
        return self._stages.on_cores(number, lambda: self._compile(part, 1))


class _StagedGraph(Graph):
    """Each call has its own requests, one a stage, and so its own tensors between them."""

    def __init__(self, compiled: Sequence[ov.CompiledModel], stages: Stages) -> None:
        self._parts = compiled
        self._stages = stages
        self._chains = deque(self._chain() for _ in compiled)

    def run(self, batch: TokenBatch) -> NDArray[np.float32]:
        try:
            chain = self._chains.pop()
        except IndexError:
            chain = self._chain()
        try:
            return self._through(chain, batch)
        finally:
            self._chains.append(chain)

    def run_on_every_stream(self, batch: TokenBatch) -> None:
        # A stage has one stream.
        self.run(batch)

    def _through(self, chain: Sequence[ov.InferRequest], batch: TokenBatch) -> NDArray[np.float32]:
        tensors: dict[str, Any] = arguments(batch)
        with self._stages.walk() as walk:
            for number, (part, request) in enumerate(zip(self._parts, chain, strict=True)):
                walk.enter(number)
                request.infer({port.any_name: tensors[port.any_name] for port in part.inputs}, share_inputs=True)
                for port in part.outputs:
                    tensors[port.any_name] = request.get_tensor(port)
        return np.array(chain[-1].get_output_tensor(0).data, dtype=np.float32)

    def _chain(self) -> list[ov.InferRequest]:
        return [part.create_infer_request() for part in self._parts]

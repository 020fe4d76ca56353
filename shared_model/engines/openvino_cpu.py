"""INT8, BF16 and FP32 on CPU, by OpenVINO."""

import functools
import hashlib
import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from shared_model.batches import Batch, Batching, Finished, PackedBatch
from shared_model.encoding import FINE_TOKENS, TokenBatch
from shared_model.engines.shared_files import let_pages_go, shared
from shared_model.storage import one_line
from shared_model.trust.verified_cache import VerifiedCache
from shared_model.types import Device, Precision

#: INT8 models keep the operators that were not quantised in fp32.
_HINT = {Precision.INT8: "f32", Precision.BF16: "bf16", Precision.FP32: "f32"}

_HALF_BATCHES = (FINE_TOKENS, (1, 4, 16, 64))
#: Tokens of a bulk batch: more are not faster.
_BULK_TOKENS = 2048
#: Tokens of one call per thread; larger batches are several. More are not faster (32×32 of all-MiniLM-L6-v2 110.0 µs a
#: token, 64×32 110.5), and a stream keeps its largest call's memory (24 MB of 2048, 10 of 1024).
_CALL_TOKENS = 1024
#: The longest texts, in tokens, that gain from batching, and the sizes of those batches: each shape costs 5 MB.
_BATCHES = {
    Precision.INT8: (FINE_TOKENS // 2, (1, 4, 16)),
    Precision.BF16: _HALF_BATCHES,
    # BF16 becomes FP32 on a CPU without BF16.
    Precision.FP32: _HALF_BATCHES,
}

#: Widths up to which a graph of single texts is compiled for each stream, and for two texts: most texts are as short.
#: Each takes 37 MB of all-MiniLM-L6-v2, and longer texts gain less.
_SHORT_TOKENS = 16

#: Tokens from which on the kernels of a batch are built by its first call on a stream: they take about 10 ms. To run
#: each at the start, on each stream, would cost more than it saves. Urgent texts run in INT8.
_SLOW_TOKENS = {Precision.INT8: 512, Precision.BF16: 128, Precision.FP32: 128}

#: The compiled graphs that engines of this process hold.
_running: weakref.WeakValueDictionary[tuple[str, int], ov.CompiledModel] = weakref.WeakValueDictionary()

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MappedModel:
    """A variant's graph. `weights`: the file that it maps, there as long as `model` is. `digest`: of graph and
    weights."""

    model: ov.Model
    weights: str
    digest: str


def read_model(files: Mapping[str, bytes]) -> MappedModel:
    """Read a variant's graph from its verified bytes. Its weights are in memory once for all related processes."""
    graph, weights = shared(files["model.xml"]), shared(files["model.bin"])
    path = f"/proc/self/fd/{weights}"
    try:
        # OpenVINO maps the weights, for as long as anything that was compiled needs them.
        model = _core().read_model(f"/proc/self/fd/{graph}", path)
    except BaseException:
        os.close(weights)
        raise
    finally:
        os.close(graph)
    # Others find the weights while this one may still compile from them.
    weakref.finalize(model, os.close, weights)
    digests = [hashlib.sha256(files[name]).hexdigest() for name in ("model.xml", "model.bin")]
    return MappedModel(model, path, " ".join(digests))


class OpenVinoEngine:
    """One graph for every shape, and specialised graphs for single texts of one width, or two of them, which skip the
    shape inference of every call. See `shared_model.engine.Engine`.

    Streams share weights and run on OpenVINO's threads. The graph of a short text alone is compiled for each stream and
    runs on the calling thread, which saves a tenth of a millisecond.

    Compiled graphs are kept in a cache, without their weights: to import one takes a third of compiling it again.
    Engines of equal bytes in one process, as those of two releases of one checkpoint, run the same compiled graphs.
    """

    device = Device.CPU
    batching = Batching.BUCKETS
    ahead = 0
    hardware = str(Device.CPU)

    def __init__(
        self,
        mapped: MappedModel,
        precision: Precision,
        threads: int,
        streams: int = 1,
        cache: VerifiedCache | None = None,
    ) -> None:
        self._mapped = mapped
        self._cache = cache
        self._hint = _HINT[precision]
        self.width = threads
        self.streams = streams
        #: By width, then rows.
        self._single: dict[int, dict[int, _FixedGraph]] = {}
        # BF16 silently falls back to FP32 on a CPU without the instructions: ask the compiled model.
        self.precision = self._any_shape.precision() if precision is Precision.BF16 else precision

    def bulk_tokens(self) -> int:
        return _BULK_TOKENS

    def rows(self, tokens: int, single: bool = False) -> Sequence[int]:
        if single:
            return next((tuple(graphs) for width, graphs in self._single.items() if width >= tokens), (1,))
        # A batch only saves the fixed cost of a call, about 1.5 ms: long texts gain nothing.
        most, sizes = _BATCHES[self.precision]
        return sizes if tokens <= most else (1,)

    def widened(self, threads: int) -> "OpenVinoEngine | None":
        return OpenVinoEngine(self._mapped, self.precision, threads, cache=self._cache)

    def beside(self) -> None:
        """None: each call has its cores."""

    def specialise(self, tokens: int, pairs: bool = False) -> None:
        if tokens in self._single:
            return
        graphs = {1: self._fixed(1, tokens)}
        if pairs and tokens <= _SHORT_TOKENS:
            pair, two = self._fixed(2, tokens), _two_texts(tokens)
            alone = np.concatenate([graphs[1].run(two.part(number, 1)) for number in range(two.rows)])
            if np.array_equal(pair.run(two), alone):
                graphs[2] = pair
        # Another one, because calls may be walking through it.
        self._single = dict(sorted({**self._single, tokens: graphs}.items()))

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        for rows, tokens in shapes:
            if rows * tokens < _SLOW_TOKENS[self.precision]:
                self._any_shape.run_on_every_stream(_blank(rows, tokens))

    def start(self, batch: Batch) -> Finished:
        if isinstance(batch, PackedBatch):
            raise TypeError("graphs read padded batches")
        began = time.perf_counter()
        return Finished(self.score(batch), time.perf_counter() - began)

    def score(self, batch: TokenBatch, single: bool = False) -> NDArray[np.float32]:
        if single:
            for tokens, graphs in self._single.items():
                if tokens >= batch.tokens:
                    return graphs[batch.rows].run(batch)
        rows = max(1, _CALL_TOKENS * self.width // batch.tokens)
        calls = [self._any_shape.run(batch.part(first, rows)) for first in range(0, batch.rows, rows)]
        return np.concatenate(calls)

    def close(self) -> None:
        self.__dict__.pop("_any_shape", None)
        del self._single, self._mapped

    @functools.cached_property
    def _any_shape(self) -> "Graph":
        """Compiled on first use: an engine may run specialised widths only."""
        return Graph([self._compiled(self.streams)] * self.streams)

    def _fixed(self, rows: int, tokens: int) -> "_FixedGraph":
        if rows == 1 and tokens <= _SHORT_TOKENS:
            return _FixedGraph([self._compiled(1, (rows, tokens), number) for number in range(self.streams)])
        return _FixedGraph([self._compiled(self.streams, (rows, tokens))] * self.streams)

    def _compiled(self, streams: int, shape: tuple[int, int] | None = None, number: int = 0) -> ov.CompiledModel:
        """For one (rows, tokens), or for any: one that runs in this process, else from the cache if it is there.
        `number`: of several that are to run at once."""
        facts = (self._mapped.digest, shape, sorted(self._properties(streams).items()), ov.get_version(), _cpu())
        name = hashlib.sha256(repr(facts).encode()).hexdigest()
        compiled = _running.get((name, number))
        if compiled is None:
            compiled = _running[name, number] = self._new(name, streams, shape)
        return compiled

    def _new(self, name: str, streams: int, shape: tuple[int, int] | None) -> ov.CompiledModel:
        if self._cache is None:
            return self._compile(self._shaped(shape), streams)
        compiled = self._imported(self._cache.read(name), streams)
        if compiled is None:
            compiled = self._compile(self._shaped(shape), streams)
            self._keep(self._cache, name, compiled)
        let_pages_go()
        return compiled

    def _keep(self, cache: VerifiedCache, name: str, compiled: ov.CompiledModel) -> None:
        try:
            cache.write(name, compiled.export_model().getvalue())
        except RuntimeError as error:
            log.warning("a graph cannot be exported, and is compiled again at each start: %s", one_line(error))

    def _imported(self, kept: bytes | None, streams: int) -> ov.CompiledModel | None:
        if kept is None:
            return None
        properties = {**self._properties(streams), "WEIGHTS_PATH": self._mapped.weights}
        try:
            return _core().import_model(kept, "CPU", properties)
        except RuntimeError as error:
            log.warning("a kept graph cannot be imported, and is compiled again: %s", one_line(error))
            return None

    def _shaped(self, shape: tuple[int, int] | None) -> ov.Model:
        if shape is None:
            return self._mapped.model
        # A clone shares the weights.
        model = self._mapped.model.clone()
        model.reshape({port.any_name: list(shape) for port in model.inputs})
        return model

    def _compile(self, model: ov.Model, streams: int, **more: Any) -> ov.CompiledModel:
        return _core().compile_model(model, "CPU", {**self._properties(streams), **more})

    def _properties(self, streams: int) -> dict[str, Any]:
        return {
            "INFERENCE_PRECISION_HINT": self._hint,
            "INFERENCE_NUM_THREADS": self.width * streams,
            "NUM_STREAMS": streams,
            # By default, streams are pinned to the first cores, which two processes would then share.
            "ENABLE_CPU_PINNING": False,
            # Exported graphs find their weights in the model's file, by offset.
            "CACHE_MODE": "OPTIMIZE_SIZE",
        }


class Graph:
    """Runs one call at once for each given compiled model; the same one may be given several times."""

    def __init__(self, compiled: Sequence[ov.CompiledModel]) -> None:
        self._compiled = compiled[0]
        self._inputs = [port.any_name for port in self._compiled.inputs]
        self._all = [each.create_infer_request() for each in compiled]
        # Appending and popping are atomic: no lock is needed.
        self._idle = deque(self._all)

    def run(self, batch: TokenBatch) -> NDArray[np.float32]:
        try:
            request = self._idle.pop()
        except IndexError:
            # More calls than streams: another request, which waits inside OpenVINO.
            request = self._compiled.create_infer_request()
        try:
            result = request.infer(self._read(batch), share_inputs=True)
            return np.array(result[0], dtype=np.float32)
        finally:
            self._idle.append(request)

    def run_on_every_stream(self, batch: TokenBatch) -> None:
        """Run a batch on each stream. No other call may be running, except one of another engine with the same graphs:
        that engine has built their kernels."""
        # The requests read this memory until they end.
        given = self._read(batch)
        for request in self._all:
            request.start_async(given, share_inputs=True)
        for request in self._all:
            request.wait()

    def precision(self) -> Precision:
        """The precision it was compiled to, BF16 or FP32."""
        hint = self._compiled.get_property("INFERENCE_PRECISION_HINT")
        return Precision.BF16 if hint == ov.Type.bf16 else Precision.FP32

    def _read(self, batch: TokenBatch) -> dict[str, NDArray[np.int64]]:
        given = arguments(batch)
        return {name: given[name] for name in self._inputs}


class _FixedGraph:
    """As `Graph`, for calls of one shape. Narrower batches are padded."""

    def __init__(self, compiled: Sequence[ov.CompiledModel]) -> None:
        self.compiled = compiled
        self._idle = deque(map(_BoundRequest, compiled))

    def run(self, batch: TokenBatch) -> NDArray[np.float32]:
        try:
            request = self._idle.pop()
        except IndexError:
            request = _BoundRequest(self.compiled[0])
        try:
            return request.run(batch)
        finally:
            self._idle.append(request)


class _BoundRequest:
    """One stream's memory for inputs and output. It is bound once, because that takes as long as to fill it ten times.
    Its kernels are built."""

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self._request = compiled.create_infer_request()
        self._inputs: dict[str, NDArray[np.int64]] = {}
        for port in compiled.inputs:
            array = np.ones(tuple(port.shape), np.int64)
            self._request.set_tensor(port, ov.Tensor(array, shared_memory=True))
            self._inputs[port.any_name] = array
        self._request.infer()
        self._output = self._request.get_output_tensor(0).data

    def run(self, batch: TokenBatch) -> NDArray[np.float32]:
        arrays = {"ids": batch.ids, "mask": batch.mask, "types": 0 if batch.types is None else batch.types}
        for name, bound in self._inputs.items():
            bound[:, : batch.tokens] = arrays[name]
            bound[:, batch.tokens :] = 0
        self._request.infer(share_outputs=True)
        return np.array(self._output, dtype=np.float32)


@functools.cache
def _core() -> ov.Core:
    """One core per process: threads and plugins are loaded once."""
    return ov.Core()


@functools.cache
def _cpu() -> str:
    """The processor and its instructions, by which OpenVINO chooses what it compiles to."""
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    instructions = next((it for it in facts if it.startswith(("flags", "Features"))), "")
    return f"{_core().get_property('CPU', 'FULL_DEVICE_NAME')} {instructions}"


def arguments(batch: TokenBatch) -> dict[str, NDArray[np.int64]]:
    """A graph's inputs by name; missing types mean that every token belongs to the first text."""
    types = np.zeros_like(batch.ids) if batch.types is None else batch.types
    return {"ids": batch.ids, "mask": batch.mask, "types": types}


def _two_texts(tokens: int) -> TokenBatch:
    """Of different length and content. Every vocabulary has the tokens 0 and 1."""
    ids = np.random.default_rng(0).integers(0, 2, (2, tokens))
    return TokenBatch(ids, np.array([[1] * tokens, [1] * (tokens // 2) + [0] * (tokens - tokens // 2)]))


def _blank(rows: int, tokens: int) -> TokenBatch:
    ones = np.ones((rows, tokens), np.int64)
    return TokenBatch(ones, ones)

"""Recorded calls say what launched ones do, run where they may, and give way to those where they cannot be recorded."""

import contextlib
import itertools
import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from shared_model.building import checkpoint
from shared_model.encoding import Encoder, Text, TokenBatch, collate
from shared_model.engines.torch_engine import TorchEngine
from shared_model.engines.torch_graphs import CudaStreams, Graphs, give_memory_back
from shared_model.types import Device, Precision
from tests.shared_model import tiny_models
from tests.shared_model.engines.simulated_streams import SimulatedStreams

#: Batches of one shape whose rows are of other lengths: full, short, and with RoBERTa's padding inside a text.
ROWS = 2
TEXTS: list[Text] = ["card " * 10, "", "card", "card " * 10, "my <pad> card is not here", "card " * 11]
PAIRS: list[Text] = [("card " * 5, "card " * 4), ("no", "is my card here yet"), ("card", "card"), ("card " * 9, "no")]
CPU = torch.device("cpu")


class Opened:
    """A tiny model on a simulated device and, launched call by call, on CPU."""

    def __init__(self, folder: Path, family: str, texts: list[Text], **failing: Any) -> None:
        loaded = checkpoint.load(tiny_models.make(folder, family), pairs=isinstance(texts[0], tuple))
        encoder = Encoder(loaded.files["tokenizer.json"], loaded.reads, release="")
        self.streams = SimulatedStreams(**failing)
        self.engine = TorchEngine(loaded.files, Precision.FP32, Device.CPU, streams=lambda at: self.streams)
        self.plain = TorchEngine(loaded.files, Precision.FP32, Device.CPU)
        encodings = encoder.encode_many(texts)
        self.batches = [collate(encodings[start : start + ROWS]) for start in range(0, len(encodings), ROWS)]


#: Recording as the simulated device does it takes seconds.
FAMILIES = [pytest.param(it, TEXTS, marks=pytest.mark.proof) for it in tiny_models.FAMILIES]


@pytest.mark.heavy
@pytest.mark.parametrize(("family", "texts"), [("bert", PAIRS), *FAMILIES])
def test_a_recorded_call_says_what_a_launched_one_does(tmp_path: Path, family: str, texts: list[Text]) -> None:
    model = Opened(tmp_path, family, texts)
    widest = max(batch.tokens for batch in model.batches)
    batches = [_widened(batch, widest) for batch in model.batches]
    model.engine.warm_up([(ROWS, widest)])
    before = len(model.streams.calls)
    # Twice: a replay leaves nothing that the next one reads.
    for batch in [*batches, *batches]:
        np.testing.assert_allclose(model.engine.score(batch), model.plain.score(batch), atol=1e-5)
    assert model.streams.calls[before:] == [("urgent", "replay")] * (2 * len(batches))


@pytest.mark.heavy
def test_bulk_work_is_launched_on_the_stream_that_yields(tmp_path: Path) -> None:
    model = Opened(tmp_path, "distilbert", TEXTS)
    batch, seen = model.batches[0], list[str]()
    model.engine.warm_up([batch.ids.shape])
    bulk = model.engine.beside()
    assert bulk is not None
    model.engine._model.register_forward_pre_hook(lambda *_: seen.append(model.streams.current))
    before = len(model.streams.calls)
    bulk.warm_up([(1, 8)])
    np.testing.assert_allclose(bulk.score(batch), model.plain.score(batch), atol=1e-5)
    assert (set(seen), model.streams.calls[before:]) == ({"yielding"}, [])
    # Urgent calls of a shape that is not recorded go before them, too.
    seen.clear()
    model.engine.score(TokenBatch(np.ones((1, 8), np.int64), np.ones((1, 8), np.int64)))
    assert (seen, model.streams.current) == (["urgent"], "the thread's own")
    # Either may be closed first.
    model.engine.close()
    np.testing.assert_allclose(bulk.score(batch), model.plain.score(batch), atol=1e-5)


@pytest.mark.heavy
def test_a_model_that_cannot_be_recorded_serves_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Opened(tmp_path, "distilbert", TEXTS, broken=0)
    with caplog.at_level(logging.INFO):
        model.engine.warm_up([(1, 8), (2, 8)])
        np.testing.assert_allclose(model.engine.score(model.batches[0]), model.plain.score(model.batches[0]), atol=1e-5)
    assert caplog.messages == [
        "calls of 1×8 and later shapes are not recorded: operation not permitted when stream is capturing"
    ]


@pytest.mark.heavy
def test_a_recorded_call_that_says_something_else_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Opened(tmp_path, "distilbert", TEXTS, deaf=True)
    model.engine.warm_up([(1, 8), (2, 8)])
    [line] = caplog.messages
    assert line.startswith("calls of 1×8 and later shapes are not recorded: its outputs differ by ")
    replays = len(model.streams.calls)
    np.testing.assert_allclose(model.engine.score(model.batches[0]), model.plain.score(model.batches[0]), atol=1e-5)
    assert len(model.streams.calls) == replays


@pytest.mark.heavy
def test_on_cpu_nothing_is_recorded_and_no_call_runs_beside_another(tmp_path: Path) -> None:
    model = Opened(tmp_path, "distilbert", TEXTS)
    model.plain.warm_up([(1, 8)])
    assert (model.plain._graphs, model.plain.beside()) == (None, None)


class Recorded:
    """Graphs of a call that adds two arrays."""

    def __init__(self, most: int = 9, broken: int | None = None) -> None:
        self.streams = SimulatedStreams(broken)
        self.graphs = Graphs(self.streams, CPU, most)

    def record(self, *shape: int) -> None:
        blank = np.zeros(shape, np.int64)
        with self.streams.urgent():
            self.graphs.record((shape[0], shape[1]), [blank, blank], lambda views: views[0] + views[1])

    def run(self, *shape: int, stream: str = "urgent") -> NDArray[np.int64]:
        left, right = np.random.default_rng(4).integers(0, 99, (2, *shape))
        with contextlib.ExitStack() as current:
            if stream != "none":
                current.enter_context(getattr(self.streams, stream)())
            found = self.graphs.run((shape[0], shape[1]), [left, right]).numpy()
        np.testing.assert_array_equal(found, left + right)
        return found


def test_each_shape_has_its_own_buffers() -> None:
    recorded = Recorded()
    for shape in [(1, 8), (2, 8)]:
        recorded.record(*shape)
    for shape in [(2, 8), (1, 8), (2, 8)]:
        recorded.run(*shape)
    with pytest.raises(KeyError):
        recorded.run(1, 16)


@pytest.mark.parametrize("stream", ["none", "yielding"])
def test_a_replay_elsewhere_than_on_its_stream_fails(stream: str) -> None:
    recorded = Recorded()
    recorded.record(1, 8)
    with pytest.raises(AssertionError, match="a replay on"):
        recorded.run(1, 8, stream=stream)


def test_a_replay_after_its_buffer_was_replaced_fails() -> None:
    recorded = Recorded()
    recorded.record(1, 8)
    graph = recorded.graphs._of[1, 8]
    object.__setattr__(graph, "inputs", graph.inputs.clone())
    with pytest.raises(AssertionError, match="nothing was copied"):
        recorded.run(1, 8)


def test_as_many_shapes_are_recorded_as_memory_is_meant_for() -> None:
    recorded = Recorded(most=2)
    for shape in [(1, 8), (1, 8), (2, 8), (4, 8)]:
        recorded.record(*shape)
    assert [recorded.graphs.holds(shape) for shape in [(1, 8), (2, 8), (4, 8)]] == [True, True, False]


def test_what_was_recorded_before_a_failure_still_runs(caplog: pytest.LogCaptureFixture) -> None:
    recorded = Recorded(broken=1)
    for shape in [(1, 8), (2, 8), (4, 8)]:
        recorded.record(*shape)
    recorded.run(1, 8)
    assert len(caplog.messages) == 1


def test_the_first_shape_that_the_warm_up_missed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    recorded = Recorded()
    with caplog.at_level(logging.INFO):
        # Before the warm-up nothing is missed.
        recorded.graphs.holds((1, 8))
        recorded.record(1, 8)
        for shape in [(1, 8), (3, 8), (5, 8)]:
            recorded.graphs.holds(shape)
    assert caplog.messages == ["a batch of 3×8 was not recorded in the warm-up; such batches are launched call by call"]


class DriverStreams:
    """What `CudaStreams` asks of torch, in order. `refused`: the driver ends a recording with an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refused: bool = False) -> None:
        self.asked = list[str]()
        self.refused = refused
        asked = {
            "Stream": self._stream,
            "current_stream": lambda at: "weights",
            "graph_pool_handle": lambda: (0, 1),
            "CUDAGraph": lambda: self,
            "empty_cache": lambda: self.asked.append("empty"),
        }
        for name, answer in asked.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            monkeypatch.setattr(torch._C, name, lambda at, pool, name=name: self.asked.append(name), raising=False)
        self.streams = CudaStreams(torch.device("cuda", 0))

    def call(self, inputs: torch.Tensor) -> torch.Tensor:
        self.asked.append("call")
        return inputs

    def _stream(self, at: torch.device, priority: int) -> SimpleNamespace:
        self.asked.append(f"stream {priority}")
        return SimpleNamespace(wait_stream=lambda other: self.asked.append(f"wait for {other}"))

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        self.asked.append(f"begin in {pool}, {capture_error_mode}")

    def capture_end(self) -> None:
        self.asked.append("end")
        if self.refused:
            raise RuntimeError("operation failed due to a previous error during capture")

    def replay(self) -> None:
        self.asked.append("replay")


def test_a_call_is_recorded_after_two_of_its_kind_and_on_streams_that_have_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = DriverStreams(monkeypatch)
    replay, _ = driver.streams.record(driver.call, torch.ones(1))
    replay()
    assert driver.asked == [
        *("stream -1", "stream 0", "wait for weights", "wait for weights"),
        *("call", "call", "begin in (0, 1), thread_local", "call", "end", "replay"),
    ]


def test_a_recording_that_the_driver_refuses_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver, calls = DriverStreams(monkeypatch, refused=True), itertools.count(1)

    def call(views: list[torch.Tensor]) -> torch.Tensor:
        if next(calls) == 3:
            raise RuntimeError("operation not permitted when stream is capturing\nand a trace")
        return views[0]

    graphs = Graphs(driver.streams, CPU)
    assert not graphs.record((1, 8), [np.zeros((1, 8), np.int64)], call)
    # The first error tells why, and not the one that follows from it.
    assert caplog.messages == [
        "calls of 1×8 and later shapes are not recorded: operation not permitted when stream is capturing"
    ]
    assert driver.asked[-3:] == ["end", "_cuda_endAllocateToPool", "_cuda_releasePool"]


def test_no_other_thread_gives_memory_back_while_a_call_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = DriverStreams(monkeypatch)
    other = threading.Thread(target=give_memory_back)

    def call(inputs: torch.Tensor) -> torch.Tensor:
        if driver.asked[-1].startswith("begin"):
            other.start()
            other.join(0.05)
        return inputs

    driver.streams.record(call, torch.ones(1))
    other.join()
    assert driver.asked[-2:] == ["end", "empty"]


def _widened(batch: TokenBatch, tokens: int) -> TokenBatch:
    def padded(array: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.pad(array, ((0, 0), (0, tokens - batch.tokens)))

    return TokenBatch(padded(batch.ids), padded(batch.mask), None if batch.types is None else padded(batch.types))

"""Graphs that are compiled already, by a former process or for another engine of this one: used where all that they
depend on is the same, with the same bits."""

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from shared_model.encoding import TokenBatch
from shared_model.engine import Engine, open_engine
from shared_model.engines import openvino_cpu
from shared_model.releases.store import Release
from shared_model.trust.verified_cache import VerifiedCache
from shared_model.types import Device, Precision

pytestmark = pytest.mark.heavy

#: Graphs of an engine in `answers`: for any shape, 1×16 and 2×16.
GRAPHS = 3


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that are compiled from now on."""
    found = list[Any]()

    class Core(ov.Core):
        def compile_model(self, model: Any, *given: Any, **more: Any) -> Any:
            found.append(model)
            return super().compile_model(model, *given, **more)

    core = Core()
    monkeypatch.setattr(openvino_cpu, "_core", lambda: core)
    # Engines of other tests may be open.
    monkeypatch.setattr(openvino_cpu, "_running", weakref.WeakValueDictionary())
    return found


@pytest.fixture
def cached(tiny_release: Release, tmp_path: Path) -> Release:
    return dataclasses.replace(tiny_release, cache=VerifiedCache(tmp_path, lambda: b"k" * 32))


def answers(release: Release, precision: Precision = Precision.INT8, threads: int = 1) -> bytes:
    """Precision and raw scores of an engine of its own, by each of its graphs."""
    draw = np.random.default_rng(0)
    batches = [TokenBatch(draw.integers(5, 200, (rows, 16)), np.ones((rows, 16), np.int64)) for rows in (1, 2, 4)]
    with closing(release.engine(precision, Device.CPU, threads)) as engine:
        engine.specialise(16, pairs=True)
        singles = [engine.score(batch, single=True) for batch in batches if batch.rows in engine.rows(16, single=True)]
        return engine.precision.encode() + b"".join(it.tobytes() for it in [*singles, *map(engine.score, batches)])


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.BF16])
def test_the_next_start_compiles_nothing_and_says_the_same(
    cached: Release, precision: Precision, compiled: list[Any]
) -> None:
    first = answers(cached, precision)
    assert len(compiled) == GRAPHS
    assert answers(cached, precision) == first
    assert len(compiled) == GRAPHS
    assert answers(dataclasses.replace(cached, cache=None), precision) == first
    assert len(compiled) == 2 * GRAPHS


def other_weights(files: dict[str, bytes]) -> dict[str, bytes]:
    changed = bytearray(files["model.bin"])
    changed[0] ^= 1
    return {**files, "model.bin": bytes(changed)}


def other_graph(files: dict[str, bytes]) -> dict[str, bytes]:
    return {**files, "model.xml": files["model.xml"] + b"\n"}


@pytest.mark.parametrize("other", [other_weights, other_graph])
def test_another_model_is_compiled(
    cached: Release, other: Callable[[dict[str, bytes]], dict[str, bytes]], compiled: list[Any]
) -> None:
    variant = cached.manifest.variant(Precision.INT8, Device.CPU)
    files = {name: cached.read(path) for name, path in variant.files.items()}
    for number, given in enumerate((files, files, other(files), other(files))):
        with closing(open_engine(Precision.INT8, Device.CPU, given, 1, cache=cached.cache)) as engine:
            engine.warm_up([(1, 8)])
        assert len(compiled) == 1 + number // 2


@pytest.mark.parametrize("changed", ["threads", "version", "processor"])
def test_what_other_conditions_were_compiled_for_is_compiled_anew(
    cached: Release, changed: str, compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(cached)
    if changed == "version":
        monkeypatch.setattr(ov, "get_version", lambda: "another")
    elif changed == "processor":
        monkeypatch.setattr(openvino_cpu, "_cpu", lambda: "another")
    answers(cached, threads=2 if changed == "threads" else 1)
    assert len(compiled) == 2 * GRAPHS


def test_what_cannot_be_imported_is_compiled_anew_and_replaced(
    cached: Release, compiled: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = answers(cached)
    assert cached.cache
    for file in list(tmp_path.iterdir()):
        cached.cache.write(file.name, b"no graph")
    assert answers(cached) == first
    assert caplog.text.count("cannot be imported") == GRAPHS
    assert answers(cached) == first
    assert len(compiled) == 2 * GRAPHS


def test_a_graph_that_cannot_be_exported_answers(
    cached: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: ov.CompiledModel) -> None:
        raise RuntimeError("an operator cannot be written")

    expected = answers(dataclasses.replace(cached, cache=None))
    monkeypatch.setattr(ov.CompiledModel, "export_model", fails)
    assert answers(cached) == expected
    assert caplog.text.count("cannot be exported") == GRAPHS
    assert not list(tmp_path.iterdir())


def test_engines_of_equal_bytes_run_the_same_graphs(tiny_release: Release, compiled: list[Any]) -> None:
    """Also at once, from several threads, and after the engine that compiled them is closed."""
    draw = np.random.default_rng(1)
    texts = [TokenBatch(draw.integers(5, 200, (1, 16)), np.ones((1, 16), np.int64)) for _ in range(32)]

    def scores(engine: Engine, single: bool) -> Sequence[bytes]:
        return [engine.score(text, single).tobytes() for text in texts]

    first, second = (tiny_release.engine(Precision.INT8, Device.CPU, 1, streams=2) for _ in range(2))
    with closing(second):
        with closing(first):
            for engine in (first, second):
                engine.specialise(16)
                engine.warm_up([(1, 16)])
            # For any shape, and for single texts one a stream.
            assert len(compiled) == 1 + 2
            alone = {single: scores(first, single) for single in (False, True)}
            with ThreadPoolExecutor(4) as threads:
                for single in (False, True):
                    for found in threads.map(scores, [first, second] * 2, [single] * 4):
                        assert found == alone[single]
        assert scores(second, single=True) == alone[True]
    with closing(tiny_release.engine(Precision.INT8, Device.CPU, 1, streams=2)) as third:
        third.warm_up([(1, 16)])
    assert len(compiled) == 1 + 2 + 1

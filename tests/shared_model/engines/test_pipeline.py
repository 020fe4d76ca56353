"""Models in stages: as in one piece, with a call in each stage at once."""

import functools
import itertools
import os
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared_model import devices
from shared_model.encoding import Encoding, collate
from shared_model.engine import TAU
from shared_model.engines import openvino_cutting
from shared_model.engines.openvino_cpu import read_model
from shared_model.engines.openvino_pipeline import OpenVinoPipeline
from shared_model.engines.stages import Stages, balanced, core_groups
from shared_model.errors import ReleaseError
from shared_model.releases.store import Release
from shared_model.types import Device, Precision, Spread
from tests.properties import examples
from tests.shared_model import tiny_models
from tests.shared_model.engines.split_models import TEXTS
from tests.shared_model.engines.staged_models import KINDS, StagedModel, one_core_each, staged_model


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], StagedModel]:
    return functools.cache(lambda family: staged_model(tmp_path_factory.mktemp(family), family))


_ROWS = st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=6)


@pytest.mark.heavy
@pytest.mark.parametrize("family", tiny_models.FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(4), deadline=None)
@given(batches=st.lists(_ROWS, min_size=1, max_size=4))
def test_stages_compute_what_the_model_does_in_one_piece(
    staged: Callable[[str], StagedModel], family: str, kind: str, batches: list[Sequence[int]]
) -> None:
    assert max(staged(family).deltas(kind, batches)) <= 1e-4


@pytest.mark.heavy
@pytest.mark.parametrize("count", [2, 3])
def test_so_does_the_default_model_in_int8(release: Release, encodings: list[Encoding], count: int) -> None:
    if len(os.sched_getaffinity(0)) < count:
        with pytest.raises(ReleaseError, match=f"{count} stages need as many cores, and"):
            release.engine(Precision.INT8, Device.CPU, 1, spread=Spread(stages=count))
        return
    batches = [collate([encoding]) for encoding in encodings[::9]]
    with (
        closing(release.engine(Precision.INT8, Device.CPU, 1)) as whole,
        closing(release.engine(Precision.INT8, Device.CPU, 1, spread=Spread(stages=count))) as engine,
        ThreadPoolExecutor(4) as threads,
    ):
        assert (engine.streams, engine.widened(2)) == (count, None)
        for batch, raw in zip(batches, threads.map(engine.score, batches), strict=True):
            delta = np.abs(release.heads.scores(raw) - release.heads.scores(whole.score(batch)))
            assert delta.max() <= TAU[Precision.INT8]


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 8), marks=pytest.mark.proof)])
@pytest.mark.heavy
def test_wherever_load_moves_the_cut_int8_answers_alike(
    release: Release, encodings: list[Encoding], monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    batches = [collate([encoding]) for encoding in encodings[::9]]
    measured = openvino_cutting.measured
    with closing(release.engine(Precision.INT8, Device.CPU, 1)) as whole:
        expected = [release.heads.scores(whole.score(batch)) for batch in batches]
    for seed in seeds:
        draw = random.Random(seed)

        def loaded(compiled: ov.CompiledModel, draw: random.Random = draw) -> dict[str, float]:
            return {name: seconds * draw.choice((0.2, 1.0, 5.0)) for name, seconds in measured(compiled).items()}

        monkeypatch.setattr(openvino_cutting, "measured", loaded)
        with closing(release.engine(Precision.INT8, Device.CPU, 1, spread=Spread(stages=2))) as engine:
            for batch, scores in zip(batches, expected, strict=True):
                assert np.abs(release.heads.scores(engine.score(batch)) - scores).max() <= TAU[Precision.INT8]


def test_no_part_hands_over_a_tensor_that_was_just_quantised(release: Release) -> None:
    variant = release.manifest.variant(Precision.INT8, Device.CPU)
    model = read_model({name: release.read(path) for name, path in variant.files.items()}).model
    for seed in range(20):
        draw = random.Random(seed)
        costs = {op.get_friendly_name(): draw.random() for op in model.get_ordered_ops()}
        *parts, _ = openvino_cutting.cut(model, draw.randint(2, 12), costs)
        handed = {it.input_value(0).get_node().get_type_name() for part in parts for it in part.get_results()}
        assert "FakeQuantize" not in handed


def test_all_stages_run_at_once_each_on_its_cores_and_one_call_at_a_time() -> None:
    groups = one_core_each(2)
    walks, before = Stages(groups), os.sched_getaffinity(0)
    in_last, both, inside, most = threading.Event(), threading.Barrier(2, timeout=10), [0, 0], [0, 0]

    def call(number: int) -> None:
        if number:
            assert in_last.wait(10)
        with walks.walk() as walk:
            for stage, cores in enumerate(groups):
                walk.enter(stage)
                inside[stage] += 1
                most[stage] = max(most[stage], inside[stage])
                assert os.sched_getaffinity(0) == set(cores)
                if stage:
                    in_last.set()
                if (number, stage) in ((0, 1), (1, 0)):
                    # The first call cannot leave the last stage before the second one is in the first.
                    both.wait()
                inside[stage] -= 1
        assert os.sched_getaffinity(0) == before

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(call, range(20)))
    assert most == [1, 1]


def test_a_call_that_fails_frees_its_stage() -> None:
    walks = Stages(one_core_each(1))

    def fail() -> None:
        with walks.walk() as walk:
            walk.enter(0)
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()


@given(costs=st.lists(st.integers(1, 100), min_size=1, max_size=40), data=st.data())
def test_stages_cost_about_the_same(costs: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(costs)))
    total = np.cumsum(costs)
    firsts = [0, *balanced(list(total / total[-1]), count), len(costs)]
    parts = [sum(costs[start:end]) for start, end in itertools.pairwise(firsts)]
    assert (len(parts), min(parts) > 0) == (count, True)
    if count <= 2:
        # As near to half as a place is, but for a tolerance that a better price may use.
        best = min(max(sum(costs[:cut]), sum(costs[cut:])) for cut in range(1, len(costs))) if count == 2 else total[-1]
        assert max(parts) <= best + 0.125 * total[-1]


def test_a_cheaper_cut_near_the_aim_is_preferred() -> None:
    shares = [0.1 * place for place in range(1, 11)]
    assert balanced(shares, 2) == [5]
    assert balanced(shares, 2, lambda place: place != 6) == [6]
    assert balanced(shares, 2, lambda place: place != 8) == [5]


@given(st.integers(1, 64), st.integers(1, 8))
def test_cores_are_dealt_evenly_and_in_order(cores: int, count: int) -> None:
    if cores < count:
        with pytest.raises(ReleaseError, match=f"{count} stages need as many cores, and {cores} are here"):
            core_groups(range(cores), count)
        return
    groups = core_groups(range(cores), count)
    assert list(itertools.chain(*groups)) == list(range(cores))
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


def test_stages_lie_in_one_numa_node_each_where_nodes_divide(tmp_path: Path) -> None:
    for node, cpulist in enumerate(["0-3,8-11", "4-7,12-15"]):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cpulist)
    nodes = devices.numa_nodes(range(16), tmp_path)
    for stages in (2, 4):
        for group in core_groups(list(itertools.chain(*nodes)), stages):
            assert any(set(group) <= set(node) for node in nodes)


def test_a_stage_is_built_on_its_cores_by_threads_that_have_no_others() -> None:
    before, groups = os.sched_getaffinity(0), one_core_each(2)

    def build() -> list[set[int]]:
        with ThreadPoolExecutor(1) as threads:
            return [os.sched_getaffinity(0), threads.submit(os.sched_getaffinity, 0).result()]

    for stage, group in enumerate(groups):
        assert Stages(groups).on_cores(stage, build) == [set(group)] * 2
    assert os.sched_getaffinity(0) == before


@pytest.mark.heavy
@pytest.mark.parametrize("near", [True, False])
def test_each_stage_is_compiled_near_its_memory_where_there_are_several(
    release: Release, encodings: list[Encoding], monkeypatch: pytest.MonkeyPatch, near: bool
) -> None:
    compiled, original = list[set[int]](), OpenVinoPipeline._compile

    def compile_(self: OpenVinoPipeline, *args: Any, **options: Any) -> ov.CompiledModel:
        compiled.append(os.sched_getaffinity(0))
        return original(self, *args, **options)

    monkeypatch.setattr(OpenVinoPipeline, "_compile", compile_)
    groups = one_core_each(2)
    nodes = [list(group) for group in groups] if near else [[core for group in groups for core in group]]
    monkeypatch.setattr("shared_model.engine.devices.numa_nodes", lambda cores: nodes)
    with closing(release.engine(Precision.INT8, Device.CPU, 1, spread=Spread(stages=2))) as engine:
        engine.score(collate(encodings[:1]))
    whole = os.sched_getaffinity(0)
    # First the model in one piece, whose parts are timed.
    assert compiled == [whole, *(set(group) if near else whole for group in groups)]

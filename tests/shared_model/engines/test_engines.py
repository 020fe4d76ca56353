"""Engines on the real release: what they answer, and that company changes nothing."""

import functools
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from shared_model.encoding import Encoding, TokenBatch, collate
from shared_model.engine import TAU, Engine, open_engine
from shared_model.engines.openvino_cpu import Graph, OpenVinoEngine, _FixedGraph
from shared_model.evaluation.benchmark import score_all
from shared_model.output import Scoring
from shared_model.releases.store import Release
from shared_model.types import Device, Precision

CPU_PRECISIONS = [Precision.FP32, Precision.BF16, Precision.INT8]
#: For code that is compiled for each width: of FP32, whose texts differ least, in `make proof`.
COMPILED_PRECISIONS = [pytest.param(Precision.FP32, marks=pytest.mark.proof), Precision.BF16, Precision.INT8]

#: Largest change of a probability between padded widths, which a planned batch does not mix. Measured: FP32 2e-6,
#: BF16 6e-3, INT8 2e-2.
TAU_OF_WIDTH = {Precision.FP32: 1e-4, Precision.BF16: 2e-2, Precision.INT8: 6e-2}
#: Texts of several lengths in one batch, the same in all tests: each shape is compiled anew.
MIXED = 12


Scores = NDArray[np.float32]


@pytest.fixture(scope="module")
def scored(
    release: Release, engines: dict[Precision, Engine], encodings: list[Encoding]
) -> Callable[[Precision], tuple[Scores, Scores]]:
    """Each text's scores alone, and those in a planned batch, computed once for each precision."""

    @functools.cache
    def of(precision: Precision) -> tuple[Scores, Scores]:
        engine = engines[precision]
        return alone(engine, release.heads, encodings), score_all(engine, release.heads, encodings)

    return of


def alone(engine: Engine, output: Scoring, encodings: list[Encoding]) -> NDArray[np.float32]:
    return np.concatenate([output.scores(engine.score(collate([encoding]))) for encoding in encodings])


def of_labels(release: Release, scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Those of the first head, which names one label."""
    return release.heads.split(scores)[0]


def margins(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    best = np.sort(scores, axis=1)
    return best[:, -1] - best[:, -2]


@pytest.mark.parametrize("precision", CPU_PRECISIONS)
def test_a_text_alone_scores_as_in_a_planned_batch(
    release: Release, scored: Callable[[Precision], tuple[Scores, Scores]], precision: Precision
) -> None:
    by_itself, in_company = (of_labels(release, scores) for scores in scored(precision))
    assert np.abs(by_itself - in_company).max() <= TAU[precision]
    changed = by_itself.argmax(1) != in_company.argmax(1)
    assert not (changed & (margins(in_company) >= 2 * TAU[precision])).any()


@pytest.mark.parametrize("precision", CPU_PRECISIONS)
def test_a_batch_of_mixed_lengths_stays_inside_the_stated_bound(
    release: Release,
    engines: dict[Precision, Engine],
    encodings: list[Encoding],
    scored: Callable[[Precision], tuple[Scores, Scores]],
    precision: Precision,
) -> None:
    mixed = release.heads.scores(engines[precision].score(collate(encodings[:MIXED])))
    by_itself, _ = scored(precision)
    assert np.abs(mixed - by_itself[:MIXED]).max() <= TAU_OF_WIDTH[precision]


@pytest.mark.parametrize("precision", CPU_PRECISIONS)
def test_padding_is_masked_whatever_it_holds(
    release: Release, engines: dict[Precision, Engine], encodings: list[Encoding], precision: Precision
) -> None:
    batch = collate(encodings[:MIXED])
    other = TokenBatch(np.where(batch.mask == 1, batch.ids, 2000), batch.mask)
    assert (batch.ids != other.ids).any()
    first, second = (release.heads.scores(engines[precision].score(coarse_bucket)) for coarse_bucket in (batch, other))
    assert np.abs(first - second).max() <= TAU[precision]


@pytest.mark.parametrize("precision", CPU_PRECISIONS)
def test_an_answer_is_a_distribution_over_the_labels(
    release: Release,
    encodings: list[Encoding],
    scored: Callable[[Precision], tuple[Scores, Scores]],
    precision: Precision,
) -> None:
    scores = of_labels(release, scored(precision)[1])
    assert scores.shape == (len(encodings), len(release.labels))
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores.sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("precision", CPU_PRECISIONS)
@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("I am still waiting on my card, it has not arrived", "card_arrival"),
        ("What is the exchange rate today?", "exchange_rate"),
        ("I forgot my passcode", "passcode_forgotten"),
        ("How old do my children have to be to open an account?", "age_limit"),
    ],
)
def test_plain_questions_get_their_label(
    release: Release, engines: dict[Precision, Engine], precision: Precision, text: str, label: str
) -> None:
    scores = of_labels(release, alone(engines[precision], release.heads, [release.encoder().encode(text)]))
    assert release.labels[int(scores.argmax())] == label


@pytest.mark.parametrize("precision", COMPILED_PRECISIONS)
def test_specialised_code_is_for_single_texts_and_leaves_all_others_their_bits(
    release: Release, engines: dict[Precision, Engine], encodings: list[Encoding], precision: Precision
) -> None:
    engine = release.engine(precision, Device.CPU, 1)
    # Texts are padded to the next of these widths; longer ones run as they always did.
    for tokens in (32, 16):
        engine.specialise(tokens)
    batches = [collate([encoding]) for encoding in encodings[:48]]
    single, usual, before = (
        of_labels(release, np.concatenate([release.heads.scores(score(batch)) for batch in batches]))
        for score in (lambda batch: engine.score(batch, single=True), engine.score, engines[precision].score)
    )
    np.testing.assert_array_equal(usual, before)
    # Rounded otherwise, and as far off as at another width; FP32 has the same bits on a CPU without AVX-512.
    assert np.abs(single - usual).max() <= TAU_OF_WIDTH[precision]
    assert engine.precision is Precision.FP32 or not np.array_equal(single, usual)
    changed = single.argmax(1) != usual.argmax(1)
    assert not (changed & (margins(usual) >= 2 * TAU_OF_WIDTH[precision])).any()
    engine.close()


@pytest.mark.parametrize("precision", COMPILED_PRECISIONS)
def test_a_text_says_the_same_with_all_cores(release: Release, encodings: list[Encoding], precision: Precision) -> None:
    narrow = release.engine(precision, Device.CPU, 1, streams=2)
    wide = narrow.widened(2)
    assert wide is not None
    assert (wide.width, wide.streams, wide.precision) == (2, 1, narrow.precision)
    for engine in (narrow, wide):
        engine.specialise(16)
        engine.specialise(32)
    batches = [collate([encoding]) for encoding in encodings[:48]]
    assert {batch.tokens for batch in batches} >= {8, 16, 24, 32}
    on_one, on_all = ([engine.score(batch, single=True) for batch in batches] for engine in (narrow, wide))
    np.testing.assert_array_equal(on_one, on_all)
    wide.close()
    # They share a model, and end apart.
    assert np.isfinite(narrow.score(batches[0])).all()
    narrow.close()


def test_two_single_texts_in_one_call_have_the_bits_of_each_alone(release: Release, encodings: list[Encoding]) -> None:
    engine = release.engine(Precision.INT8, Device.CPU, 1)
    assert engine.rows(16, single=True) == (1,)
    for tokens in (16, 32):
        engine.specialise(tokens, pairs=True)
    assert [engine.rows(tokens, single=True) for tokens in (8, 16, 24, 64)] == [(1, 2), (1, 2), (1,), (1,)]
    short = [encoding for encoding in encodings if 9 <= encoding.tokens <= 16][:40]
    alone = [engine.score(collate([encoding]), single=True)[0] for encoding in short]
    pairs = [engine.score(collate(pair), single=True) for pair in zip(short[::2], short[1::2], strict=True)]
    np.testing.assert_array_equal(np.concatenate(pairs), alone)
    engine.close()


def test_texts_that_would_change_in_one_call_are_not_paired(
    release: Release, encodings: list[Encoding], monkeypatch: pytest.MonkeyPatch
) -> None:
    two_bits = _FixedGraph.run
    monkeypatch.setattr(_FixedGraph, "run", lambda graph, batch: two_bits(graph, batch) + (batch.rows == 2) * 1e-6)
    engine = release.engine(Precision.INT8, Device.CPU, 1)
    engine.specialise(16, pairs=True)
    assert engine.rows(16, single=True) == (1,)
    engine.close()


def test_calls_on_several_streams_do_not_disturb_each_other(
    release: Release, engines: dict[Precision, Engine], encodings: list[Encoding]
) -> None:
    engine = release.engine(Precision.INT8, Device.CPU, 1, streams=2)
    assert (engine.width, engine.streams) == (1, 2)
    engine.warm_up([(1, 8), (4, 16)])
    batches = [collate([encoding]) for encoding in encodings]
    # More callers than streams: some wait, none sees another's numbers.
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(engine.score, batches))
    np.testing.assert_array_equal(together, [engines[Precision.INT8].score(batch) for batch in batches])
    engine.close()


@pytest.mark.parametrize(("threads", "calls"), [(1, [32, 32, 8]), (2, [64, 8]), (3, [72])])
def test_a_large_batch_is_calls_of_a_size_a_thread_and_its_texts_keep_their_bits(
    release: Release, monkeypatch: pytest.MonkeyPatch, threads: int, calls: list[int]
) -> None:
    ids = np.random.default_rng(0).integers(1000, 20_000, (72, 32))
    large = TokenBatch(ids, np.ones_like(ids))
    engine = release.engine(Precision.BF16, Device.CPU, threads)
    assert isinstance(engine, OpenVinoEngine)
    in_one, ran, run = engine._any_shape.run(large), list[int](), Graph.run

    def recorded(graph: Graph, batch: TokenBatch) -> Scores:
        ran.append(batch.rows)
        return run(graph, batch)

    monkeypatch.setattr(Graph, "run", recorded)
    np.testing.assert_array_equal(engine.score(large), in_one)
    assert ran == calls
    engine.close()


def test_fp16_code_agrees_with_fp32_on_cpu(
    release: Release, engines: dict[Precision, Engine], encodings: list[Encoding]
) -> None:
    variant = release.manifest.variant(Precision.FP16, Device.CUDA)
    files = {name: release.read(path) for name, path in variant.files.items()}
    engine = open_engine(Precision.FP16, Device.CPU, files, threads=1)
    engine.warm_up([(1, 8)])
    sample = encodings[:48]
    half, full = (
        of_labels(release, score_all(each, release.heads, sample)) for each in (engine, engines[Precision.FP32])
    )
    assert (engine.precision, engine.device) == (Precision.FP16, Device.CPU)
    assert np.abs(half - full).max() <= 5e-3  # measured: 1.1e-3
    changed = half.argmax(1) != full.argmax(1)
    assert not (changed & (margins(full) >= 1e-2)).any()
    engine.close()


def test_engines_say_what_they_run(engines: dict[Precision, Engine]) -> None:
    assert engines[Precision.FP32].precision is Precision.FP32
    assert engines[Precision.INT8].precision is Precision.INT8
    assert engines[Precision.BF16].precision in (Precision.BF16, Precision.FP32)  # as the CPU has it
    assert {engine.device for engine in engines.values()} == {Device.CPU}


@pytest.mark.heavy
def test_a_process_that_only_scores_does_not_load_the_converter_of_models() -> None:
    loaded = "sorted(it for it, module in sys.modules.items() if module and it.startswith('openvino.tools.'))"
    code = f"import sys, shared_model.engines.openvino_cpu; print({loaded})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"[]\n"


def test_width_is_the_threads_asked_for(release: Release) -> None:
    engine = release.engine(Precision.INT8, Device.CPU, threads=1)
    assert engine.width == 1
    engine.warm_up([(1, 8), (4, 16)])
    engine.close()


@pytest.mark.parametrize(
    ("precision", "expected"),
    [(Precision.INT8, [(1, 8), (1, 256), (4, 16), (4, 64)]), (Precision.BF16, [(1, 8), (4, 16)])],
)
def test_a_warm_up_runs_batches_that_gain_from_it_on_each_stream(
    release: Release, monkeypatch: pytest.MonkeyPatch, precision: Precision, expected: list[tuple[int, int]]
) -> None:
    ran = list[tuple[int, int]]()
    monkeypatch.setattr(Graph, "run_on_every_stream", lambda _, batch: ran.append((batch.rows, batch.tokens)))
    engine = release.engine(precision, Device.CPU, threads=1)
    engine.warm_up([(1, 8), (1, 256), (4, 16), (4, 64), (16, 32), (64, 32)])
    assert ran == expected
    engine.close()


@pytest.mark.parametrize("precision", COMPILED_PRECISIONS)
def test_streams_are_pinned_to_no_core(release: Release, precision: Precision) -> None:
    """Those of every process would be pinned to the first cores, of two processes to the same."""
    engine = release.engine(precision, Device.CPU, threads=1, streams=2)
    assert isinstance(engine, OpenVinoEngine)
    engine.specialise(16)
    compiled = [each.get_compiled_model() for each in engine._any_shape._all] + list(engine._single[16][1].compiled)
    assert [each.get_property("ENABLE_CPU_PINNING") for each in compiled] == [False] * 4
    engine.close()

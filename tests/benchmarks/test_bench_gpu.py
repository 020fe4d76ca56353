"""`make bench-gpu` on CPU with a tiny model: its code runs, its figures mean nothing."""

import itertools
import json
from pathlib import Path

import pytest

from shared_model import demo_messages, devices
from shared_model.batches import Batch, Running
from shared_model.engine import TAU
from shared_model.engines.torch_engine import TorchEngine
from shared_model.releases.store import Release
from shared_model.types import Device, Precision
from tests.benchmarks import bench_gpu
from tests.benchmarks.devices import gains, models, rates
from tests.benchmarks.nightly import corpus
from tests.benchmarks.nightly.corpus import Corpus


@pytest.mark.heavy
def test_it_measures_each_kind_of_lengths_beside_other_libraries(
    release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = list(itertools.islice(demo_messages.texts(seed=6), 40))
    monkeypatch.setattr(corpus, "load", lambda folder: Corpus(texts, "few messages"))
    monkeypatch.setattr(bench_gpu, "_ONLINE_CALLS", 3)
    monkeypatch.setattr(gains, "_CALLS", 3)
    monkeypatch.setattr(rates, "_PRODUCTS", 2)
    # A CPU multiplies FP8 slowly.
    monkeypatch.setattr(gains, "narrow", lambda subject, texts, narrow=gains.narrow: narrow(subject, texts[:1]))
    # Tracing takes torch half a minute: a proof of its own.
    monkeypatch.setattr(gains, "compiled", lambda subject, texts: {"compiled_over_launched": 1.0})
    monkeypatch.setenv("TANDEM_RELEASES", release.files.root)
    out = tmp_path / "gpu.json"
    assert bench_gpu.main(["--device", "cpu", "--models", "tiny", "--rows", "40", "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    [share] = document["figures"]
    assert share["name"] == "matmul_share_tiny"
    assert share["value"] > 0
    assert document["conditions"]["tiny, single calls"]["recorded_over_launched"] > 0
    measured = document["conditions"]["tiny"]
    assert list(measured) == ["messages", "128", "384"]
    for figures in measured.values():
        assert figures.keys() >= {
            "rows_per_second",
            "over_transformers",
            "over_sentence_transformers",
            "p50_ms",
            "p99_ms",
            "compiled_over_launched",
            "int8_over_launched",
            "fp8_over_launched",
        }
        assert 0 < figures["device_busy"] <= 1
        # A layer with a wrong scale is several tenths away.
        assert 0 < max(figures["int8_delta"], figures["fp8_delta"]) < 0.1
        assert all(value > 0 for value in figures.values())


@pytest.mark.proof
def test_a_compiled_model_is_measured_on_batches_of_other_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, seen, original = models.subject(tmp_path, "tiny", Device.CPU), list[int](), TorchEngine.start

    def start(self: TorchEngine, batch: Batch) -> Running:
        seen.append(batch.size)
        return original(self, batch)

    monkeypatch.setattr(TorchEngine, "start", start)
    monkeypatch.setattr(gains, "LEAST_PACKED_TOKENS", 32)
    found = gains.compiled(subject, [models.text(tokens) for tokens in (16, 8, 20, 5, 7, 30, 12, 9)])
    subject.engine.close()
    assert found["compiled_over_launched"] > 0
    assert 0 <= found["compiled_delta"] <= TAU[Precision.FP16]
    # The first one's scores, then each batch on both.
    assert seen == [24, 24, *[24, 32, 30, 21] * 2]


@pytest.mark.proof
def test_two_ranks_are_measured_where_two_gpus_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, texts = models.subject(tmp_path, "tiny", Device.CPU), [models.text(16)] * 40
    assert gains.tensor_parallel(subject, texts, ours=1.0) == {}
    monkeypatch.setattr(devices, "gpus", lambda: 2)
    assert gains.tensor_parallel(subject, texts, ours=1.0)["two_ranks_over_one"] > 0
    subject.engine.close()


@pytest.mark.heavy
def test_a_text_has_as_many_tokens_as_it_should(tmp_path: Path) -> None:
    subject = models.subject(tmp_path, "tiny", Device.CPU)
    lengths = [2, 3, 16, 64]
    encoded = subject.encoder.encode_many([models.text(tokens) for tokens in lengths])
    subject.engine.close()
    assert [encoding.tokens for encoding in encoded] == lengths


def test_without_a_gpu_it_is_one_line_and_exit_code_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devices, "detect", lambda: Device.CPU)
    assert bench_gpu.main([]) == 3
    assert capsys.readouterr().err.splitlines() == [
        "bench-gpu: no GPU is here that CUDA can use; run it on a host with one"
    ]


def test_bert_large_is_promised_half_of_the_devices_rate() -> None:
    [large, base] = bench_gpu.targets(["bert-large", "bert-base"])
    assert (large.bound, base.bound) == (">= 0.5", ">= 0")

"""The arithmetic of `make bench-nightly`; the nightly run itself is tested in tests/batch_job."""

import json
import re
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

from batch_job.inputs.source import read_folder
from tests.benchmarks import bench_nightly, rounds
from tests.benchmarks.bench_nightly import GROUPS
from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.nightly import corpus, flops, groups, memory
from tests.benchmarks.nightly.corpus import Corpus
from tests.benchmarks.nightly.memory import Sample
from tests.benchmarks.nightly.stage import Notes, Stage


def test_figures_carry_the_bounds_that_were_promised() -> None:
    promised = {target.name: target.bound for target in rounds.targets(GROUPS, list(GROUPS))}
    assert promised == {
        "of_bare_bf16": ">= 0.90",
        "frame_of_bare": ">= 0.90",
        "of_bare_int8": ">= 0.88",
        "over_stock": ">= 7",
        "over_sentence_transformers": ">= 1.6",
        "padding_share": "<= 0.02",
        "memory_gb": "<= 3.5",
        "memory_growth": "<= 0.05",
        "first_batch_s": "<= 18",
        "scaling": ">= 1.7",
        "interactive_p95_ms": "<= 50",
        "interactive_over_alone": "<= 3",
    }
    assert all(re.fullmatch(r"[a-z_0-9]+", name) for name in promised)


def test_a_night_costs_what_its_hours_cost() -> None:
    notes = Notes()
    notes.add("nightly half precision, rows/s", 500)
    notes.add("nightly half precision, rows/s", 1_000)
    told = bench_nightly.conditions(Corpus(["a", "b"], "ours"), 8_000, 0.36, notes)
    assert told["cost_per_million_messages"] == [0.2, 0.1]
    assert (told["rows"], told["nightly half precision, rows/s"]) == (2, [500, 1_000])


def test_arithmetic_is_counted_as_torch_counts_it() -> None:
    config = BertConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    model = BertModel._from_config(config, attn_implementation="eager", add_pooling_layer=False)
    lengths = [1, 7, 30]
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        for tokens in lengths:
            model(torch.ones(1, tokens, dtype=torch.int64))
    assert flops.of_texts(config.to_dict(), lengths) == counter.get_total_flops()


def test_utilisation_is_told_where_the_gpus_peak_is_known() -> None:
    assert flops.peak("NVIDIA H100 80GB HBM3") == flops.peak("NVIDIA H200") == 989e12
    assert flops.peak("NVIDIA H100 PCIe") == 756e12
    assert flops.peak("") == flops.peak("Another GPU") == 0


@pytest.fixture
def stage() -> Stage:
    """One whose bare engine has no process, and no GPU; nothing is said."""
    made = Stage(Mock(), Corpus(["a", "b"], "ours"), 2, Notes(), lambda line: None)
    made.__dict__["bare"] = Mock(opened={"gpu": ""}, ask=Mock(return_value={"flops_per_row": 9.89e9}))
    return made


def test_a_round_tells_where_the_time_went_and_how_busy_the_slots_were(stage: Stage) -> None:
    seconds = {"read": 0.5, "score": 4.0, "workers tokenised": 0.2, "workers ran": 6.0, "workers wrote": 0.1}
    done = {"precision": "fp16", "seconds": seconds, "tokens_per_second": 2_000, "busy_share": 0.75}
    groups.note_stages(stage, done)
    told = bench_nightly.conditions(Corpus(["a"], "ours"), 1, 0.1, stage.notes)
    assert told["half precision"] == "fp16"
    assert {name: told[f"seconds: {name}"] for name in seconds} == {name: [value] for name, value in seconds.items()}
    assert told["nightly half precision, tokens/s"] == [2_000]
    assert told["device busy share"] == [0.75]


@pytest.mark.parametrize(
    ("compiled", "dtype", "name"),
    [("bf16", "bfloat16", "bf16"), ("fp16", "bfloat16", "bf16"), ("fp32", "float32", "fp32")],
)
def test_sentence_transformers_runs_in_bf16_where_the_nightly_run_is_not_left_with_fp32(
    stage: Stage, compiled: str, dtype: str, name: str
) -> None:
    child = stage.__dict__["sentences"] = Mock(ask=Mock(return_value={"rows_per_second": 7.0}))
    assert groups.sentences_rate(stage, compiled) == 7.0
    assert {call.kwargs["dtype"] for call in child.ask.call_args_list} == {dtype}
    assert stage.notes.values == {f"sentence-transformers {name}, rows/s": [7.0]}


@pytest.mark.parametrize(
    ("gpu", "measured", "words"),
    [
        ("", {}, {}),
        ("NVIDIA H100 80GB HBM3", {"model FLOP utilisation of NVIDIA H100 80GB HBM3": [0.1]}, {}),
        ("Another", {}, {"model FLOP utilisation": "not told: the peak of Another is not known here"}),
    ],
)
def test_a_round_on_a_gpu_tells_its_utilisation_or_why_not(
    stage: Stage, gpu: str, measured: dict[str, list[float]], words: dict[str, str]
) -> None:
    stage.bare.opened["gpu"] = gpu
    groups.note_utilisation(stage, 10_000)
    assert (stage.notes.values, stage.notes.words) == (measured, words)


def test_what_is_too_slow_alone_says_nothing_of_what_a_nightly_run_costs_it() -> None:
    groups.refuse_overload(999.0)
    with pytest.raises(CannotMeasure, match=r"alone, .* does not answer 200 calls/s within 1,000 ms"):
        groups.refuse_overload(1_000.0)


def test_growth_is_what_comes_after_the_first_rows() -> None:
    samples = [
        Sample(0, 900),
        Sample(8_000, 3_000),
        Sample(20_000, 2_000),
        Sample(60_000, 2_100),
        Sample(80_000, 1_500),
    ]
    figures = memory.figures(samples)
    assert figures["memory_gb"] == pytest.approx(3e-6)
    assert figures["memory_growth"] == pytest.approx(0.05)
    with pytest.raises(CannotMeasure, match="was not seen after 20,000 rows"):
        memory.figures(samples[:3])


def test_only_files_that_are_finished_count_as_rows(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64())])
    pq.write_table(pa.table({"n": range(7)}, schema), tmp_path / "a.parquet")
    with pq.ParquetWriter(tmp_path / "b.parquet", schema) as writer:
        writer.write_table(pa.table({"n": range(5)}, schema))
        assert memory.rows_written(tmp_path) == 7
    assert memory.rows_written(tmp_path) == 12
    assert memory.rows_written(tmp_path / "none") == 0


def test_memory_of_this_process_is_seen_and_none_of_one_that_has_ended(tmp_path: Path) -> None:
    assert memory.pss(Path("/proc/self")) > 10_000_000
    assert memory.pss(tmp_path) == 0


def test_a_day_is_written_as_the_nightly_run_reads_it(tmp_path: Path) -> None:
    corpus.write_day(tmp_path, "2026-01-02", ["one\ntwo", "two", "two"])
    assert read_folder(tmp_path / "ds=2026-01-02").lines == 3
    lines = (tmp_path / "ds=2026-01-02" / "messages.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["one\ntwo", "two", "two"]
    assert len({json.loads(line)["id"] for line in lines}) == 3


def test_without_the_corpus_texts_are_our_own_and_a_folder_without_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "_OWN_TEXTS", 50)
    own = corpus.load(None)
    assert (len(own.texts), own.source) == (50, "messages of our own")
    assert own.texts == corpus.load(None).texts
    with pytest.raises(CannotMeasure, match=r"messages\.jsonl\.gz cannot be read: .*; pass another DATA=DIR"):
        corpus.load(tmp_path)

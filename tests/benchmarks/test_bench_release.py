"""`make bench-release`: what it reads from its builds, and what it does where it cannot measure."""

import contextlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared_model.building import build as build_default
from shared_model.building import checkpoint, convert
from shared_model.building.recipes import RECIPES
from shared_model.encoding import Encoder, collate
from shared_model.engine import open_engine
from shared_model.evaluation.agreement import cosines
from shared_model.types import Device, Precision
from tests.benchmarks import bench_release, fragile_encoder, gate_errors, harness
from tests.benchmarks.bench_release import Build
from tests.benchmarks.harness import Place


def build(seconds: float, bf16_compiled: str = "bf16") -> Build:
    variants = [variant("int8", "int8"), variant("bf16", bf16_compiled)]
    tried = [{"recipe": "plain", "failures": []}]
    return Build(seconds, {"variants": variants, "tried": tried, "quality": {"calibration": {"ece_after": 0.0105}}}, "")


def variant(precision: str, compiled: str) -> dict[str, Any]:
    facts = {"agreement": 0.9951, "accuracy": 0.9295, "accuracy_drop_points": 0.1}
    return {"precision": precision, "compiled": compiled, "device": "cpu", **facts}


def figures(*builds: Build) -> dict[str, float]:
    result = harness.result(bench_release.TARGETS, bench_release.runs(builds), Place({}, {}, ""))
    return {figure.name: figure.value for figure in result.figures}


def test_every_promised_figure_comes_from_the_builds() -> None:
    assert figures(build(30.0), build(50.0), build(31.0)) == {
        "int8_agreement": 0.9951,
        "int8_accuracy_drop_points": 0.1,
        "bf16_agreement": 0.9951,
        "int8_accuracy": 0.9295,
        "build_s": 31.0,
        "first_recipe_s": 31.0,
        "ece_after": 0.0105,
        "false_refusals_1000": pytest.approx(0.0091, abs=1e-4),
        "missed_1pt_3000": pytest.approx(0.0481, abs=1e-4),
    }


def test_the_worst_build_is_one_whose_last_recipe_alone_passes() -> None:
    def tried(*failures: list[str]) -> Build:
        return Build(90.0, {"tried": [{"recipe": str(failed), "failures": failed} for failed in failures]}, "")

    refused = ["agrees too seldom"]
    others = [refused] * (len(RECIPES) - 1)
    assert bench_release.worst_seconds([tried(*others, []), tried([]), tried(*others, refused)]) == [90.0]
    assert (
        bench_release.runs([replace(build(30.0), document={**build(30.0).document, "tried": [{}, {}]})])[
            "first_recipe_s"
        ]
        == []
    )


@pytest.mark.heavy
def test_fp32_does_not_notice_what_makes_an_encoder_fragile(tmp_path: Path) -> None:
    """One hidden unit of some blocks is missing, and large."""
    fragile = fragile_encoder.write(tmp_path / "fragile")
    plain, other = (_embedding(folder) for folder in (build_default.default_encoder(), fragile))
    assert cosines(plain, other).min() > 0.99


def _embedding(folder: Path) -> np.ndarray:
    made = checkpoint.load(folder)
    graph = convert.openvino_files(convert.to_openvino(made))
    encodings = Encoder(made.files["tokenizer.json"], made.reads, release="").encode_many(["where is my card", "hello"])
    with contextlib.closing(open_engine(Precision.FP32, Device.CPU, graph, 1)) as engine:
        return engine.score(collate(encodings))


def test_the_error_rates_of_the_gate_hold_and_are_documented() -> None:
    assert gate_errors.false_refusal(1000, 0.02) <= 0.012
    assert gate_errors.missed(3000, 0.02) <= 0.06
    table = "".join(f"| {' | '.join(row)} |\n" for row in gate_errors.rows())
    assert table in (harness.REPOSITORY / "shared_model" / "README.md").read_text()


def test_fp32_arithmetic_is_not_taken_for_bf16() -> None:
    """A CPU without BF16 instructions compiles fp32, which would agree with itself."""
    assert "bf16_agreement" not in figures(build(30.0, bf16_compiled="fp32"))


def test_a_build_does_not_meet_the_stack_that_runs_here(tmp_path: Path) -> None:
    stack = {"REDIS_URL": "redis://a", "TANDEM_REDIS_URL": "redis://b", "TANDEM_RELEASES": "/releases", "HOME": "/home"}
    assert bench_release.own_environment(stack, tmp_path) == {"HOME": "/home", "TANDEM_STATE": str(tmp_path)}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, r"bench-release: .*test.csv is not there; pass BANKING77's test.csv as EVAL=FILE\n"),
        ("text,category\n", "bench-release: .*test.csv: has no examples under its header line\n"),
    ],
)
def test_without_labelled_texts_it_says_what_to_pass(
    content: str | None, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = tmp_path / "test.csv"
    if content is not None:
        evaluation.write_text(content)
    assert bench_release.main(["--eval", str(evaluation), "--out", str(tmp_path / "out.json")]) == 2
    printed = capsys.readouterr()
    assert re.fullmatch(line, printed.err)
    assert printed.out == ""
    assert not (tmp_path / "out.json").exists()

"""python -m tests.benchmarks.bench_release: is the default release what we promise?

Builds it from nothing, three times, each in a process and a folder of its own, and judges it on BANKING77's test split.
`build_s` is the whole command: start of Python, conversion, quantisation, gate with labelled texts, promotion;
`first_recipe_s` too, where the first recipe passes, and `worst_build_s` with an encoder that only the last one fits
(`fragile_encoder`). `int8_over_bf16` and `int8_batch1_over_fp32` compare calls of 64×32 and 1×32 (as the latency lane
runs it) in turns.
`three_heads_cost` is the upper 95 % bound of what two further heads add to a call and to a night's row.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared_model import devices, settings
from shared_model.building import build, checkpoint, convert
from shared_model.building.recipes import RECIPES, Quantiser, Recipe
from shared_model.commands.make_release import HEADS, default_heads
from shared_model.encoding import Encoder
from shared_model.errors import TandemError
from shared_model.evaluation import corpora, report
from shared_model.evaluation.examples import read_examples
from shared_model.releases.store import Store
from shared_model.types import Device, Precision
from tests.benchmarks import fragile_encoder, gate_errors, harness, interleaved, three_heads
from tests.benchmarks.harness import REPOSITORY, CannotMeasure, Target

BUILDS = 3
DEFAULT_EVAL = Path("../shared/data/banking77/test.csv")
DEFAULT_OUT = Path(".tandem/bench/release.json")

TARGETS = (
    Target("int8_agreement", "share", ">= 0.990"),
    Target("int8_accuracy_drop_points", "points", "<= 0.3"),
    Target("bf16_agreement", "share", ">= 0.999"),
    Target("int8_accuracy", "share", ">= 0.926"),
    Target("build_s", "s", "<= 180"),
    Target("first_recipe_s", "s", "<= 60"),
    Target("worst_build_s", "s", "<= 150"),
    Target("int8_over_bf16", "times", ">= 1.7"),
    Target("int8_batch1_over_fp32", "times", ">= 2"),
    Target("false_refusals_1000", "share", "<= 0.012"),
    Target("missed_1pt_3000", "share", "<= 0.06"),
    Target("ece_after", "share", "<= 0.02"),
    Target("three_heads_cost", "share", "<= 0.03"),
)
#: Calls of each engine that are compared.
_ROUNDS = 41
#: Name of the conditions' figure that tells how fast the machine quantises.
FIXED = "seconds of a fixed quantisation"
#: Share of texts that exactly one of variant and reference gets right, for the error rates of the gate.
_DISCORDANCE = 0.02
PACKAGES = ("openvino", "nncf", "torch", "tokenizers", "numpy")
ATTRIBUTION = "Accuracy: test split of BANKING77 (CC BY 4.0, Casanueva et al. 2020)."


@dataclass(frozen=True)
class Build:
    """One build: how long it took and its report, as JSON and as Markdown."""

    seconds: float
    document: dict[str, Any]
    markdown: str


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured, whatever it found: the table says which bounds do not hold. 2 when it could not."""
    args = _parser().parse_args(arguments)
    place = harness.place(PACKAGES)
    try:
        evaluation = _evaluation(args.eval)
        conditions: dict[str, Any] = {FIXED: fixed_quantisations()}
        with tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder:
            builds = build_often("build", evaluation, Path(folder, "default"))
            fragile = fragile_encoder.write(Path(folder, "fragile"))
            head = ("--encoder", str(fragile), "--head", str(HEADS / "banking77"), "--name", "worst")
            worst = build_often("worst build", evaluation, Path(folder, "worst"), *head)
            speed = speed_ratios(Store(Path(folder, "default", "1", "releases")))
        print("three heads against one", flush=True)
        heads = three_heads.ratios()
    except (CannotMeasure, TandemError) as error:
        print(f"bench-release: {error}", file=sys.stderr)
        return 2
    figures = {**runs(builds), **speed, "worst_build_s": worst_seconds(worst)}
    figures["three_heads_cost"] = [three_heads.cost(heads)]
    result = harness.result(TARGETS, figures, place, {**conditions, **heads})
    result.write(args.out)
    print(f"\n{builds[-1].markdown}\n{result.table()}\n\n{ATTRIBUTION}\nwritten to {args.out}")
    return 0


def fixed_quantisations() -> list[float]:
    """Seconds of the plain recipe on the default model, to compare a machine's builds with another's."""
    made = checkpoint.with_heads(build.default_encoder(), default_heads())
    model, texts = convert.to_openvino(made), corpora.choose(made.output, made.reads)
    encodings = Encoder(made.files["tokenizer.json"], made.reads, release="").encode_many(texts.calibration)
    found = []
    for _ in range(BUILDS):
        began = time.perf_counter()
        Quantiser(model, encodings, ()).apply(Recipe(400))
        found.append(time.perf_counter() - began)
    return found


def build_often(what: str, evaluation: Path, folder: Path, *options: str) -> list[Build]:
    """Builds into folders 1, 2, … of `folder`."""
    builds = []
    for number in range(1, BUILDS + 1):
        print(f"{what} {number} of {BUILDS}", flush=True)
        builds.append(build_anew(folder / str(number), evaluation, *options))
    return builds


def build_anew(state: Path, evaluation: Path, *options: str) -> Build:
    """Build into an empty folder. A release that its gate refuses (exit code 1) is a measurement too."""
    state.mkdir(parents=True)
    command = [sys.executable, "-m", "shared_model", "build", "--eval", str(evaluation), *options]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=REPOSITORY, env=own_environment(os.environ, state), check=False)
    seconds = time.perf_counter() - started
    written = next(state.glob(f"releases/*/*/{report.JSON}"), None)
    if written is None or done.returncode not in (0, 1):
        raise CannotMeasure(f"the build failed with exit code {done.returncode}; its last lines say why")
    return Build(seconds, json.loads(written.read_bytes()), written.with_name(report.MARKDOWN).read_text())


def worst_seconds(builds: Sequence[Build]) -> list[float]:
    """Of builds in which only the last recipe passed: no other is the worst."""
    tried = [[not recipe["failures"] for recipe in build.document["tried"]] for build in builds]
    only_last = [False] * (len(RECIPES) - 1) + [True]
    return [build.seconds for build, passed in zip(builds, tried, strict=True) if passed == only_last]


def speed_ratios(store: Store) -> dict[str, list[float]]:
    """How much faster INT8 is than BF16 on 64×32, where that is native, and than fp32 on 1×32, by round."""
    release = store.open(next(iter(store.ids())))
    with contextlib.ExitStack() as stack:
        engines = {
            it: stack.enter_context(contextlib.closing(release.engine(it, Device.CPU, devices.cores())))
            for it in (Precision.FP32, Precision.BF16, Precision.INT8)
        }
        batches = interleaved.seconds(engines, 64, 32, _ROUNDS)
        singles = interleaved.seconds(engines, 1, 32, _ROUNDS)
        native = engines[Precision.BF16].precision is Precision.BF16
    of_bf16 = _ratios(batches[Precision.BF16], batches[Precision.INT8]) if native else []
    return {
        "int8_over_bf16": of_bf16,
        "int8_batch1_over_fp32": _ratios(singles[Precision.FP32], singles[Precision.INT8]),
    }


def _ratios(slow: Sequence[float], fast: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(slow, fast, strict=True)]


def own_environment(environ: Mapping[str, str], state: Path) -> dict[str, str]:
    """Without the settings of a stack that may be running: this release must not become its active one."""
    kept = {k: v for k, v in environ.items() if not k.startswith(settings.PREFIX) and k != "REDIS_URL"}
    return {**kept, "TANDEM_STATE": str(state)}


def runs(builds: Sequence[Build]) -> dict[str, Sequence[float]]:
    """Each figure's runs. A variant that this machine compiled at another precision than its own has none."""
    int8 = [variant for build in builds for variant in _compiled_as_asked(build, Precision.INT8)]
    bf16 = [variant for build in builds for variant in _compiled_as_asked(build, Precision.BF16)]
    return {
        "int8_agreement": [variant["agreement"] for variant in int8],
        "int8_accuracy_drop_points": [variant["accuracy_drop_points"] for variant in int8],
        "bf16_agreement": [variant["agreement"] for variant in bf16],
        "int8_accuracy": [variant["accuracy"] for variant in int8],
        "build_s": [build.seconds for build in builds],
        "first_recipe_s": [build.seconds for build in builds if len(build.document["tried"]) == 1],
        # Of fp32, cross-fitted.
        "ece_after": [build.document["quality"]["calibration"]["ece_after"] for build in builds],
        # Error rates of the gate itself, exact.
        "false_refusals_1000": [gate_errors.false_refusal(1000, _DISCORDANCE)],
        "missed_1pt_3000": [gate_errors.missed(3000, _DISCORDANCE)],
    }


def _evaluation(path: Path) -> Path:
    evaluation = (REPOSITORY / path).resolve()
    if not evaluation.is_file():
        raise CannotMeasure(f"{path} is not there; pass BANKING77's test.csv as EVAL=FILE")
    read_examples(evaluation)
    return evaluation


def _compiled_as_asked(build: Build, precision: Precision) -> list[dict[str, Any]]:
    variants = build.document["variants"]
    return [v for v in variants if v["precision"] == v["compiled"] == precision and v["device"] == "cpu"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench-release", description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    parser.add_argument("--eval", type=Path, default=DEFAULT_EVAL, help="BANKING77's test.csv, from the repository")
    return parser


if __name__ == "__main__":
    sys.exit(main())

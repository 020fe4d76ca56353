"""The groups of figures: each runs what it compares on a stage and returns figure → value of one round."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import psutil

from batch_job import run_record
from shared_model import devices
from shared_model.types import Device, Precision
from tests.benchmarks import replicas
from tests.benchmarks.harness import REPOSITORY, CannotMeasure
from tests.benchmarks.nightly import flops
from tests.benchmarks.nightly import memory as watching
from tests.benchmarks.nightly.stage import SAMPLE, WARM, WHOLE, Stage
from tests.load import arrivals, load
from tests.load.child import Child
from tests.load.plans import Plan

Figures = dict[str, float]

#: Interactive calls a second beside the nightly run, and for how long.
INTERACTIVE_RATE = 200.0
_INTERACTIVE_SECONDS = 20.0
_SETTLE_SECONDS = 1.0
_DEADLINE_MS = 1_000
_STARTING_SECONDS = 120.0
_TORCH_NAMES = {Precision.FP32: "float32", Precision.BF16: "bfloat16"}


def half(stage: Stage) -> Figures:
    """Half precision against its bare engine, which comes before and after, and against what else one might use."""
    night, bare = stage.bare_rates("bare half precision", lambda: stage.score(stage.night, "nightly half precision"))
    note_stages(stage, night)
    sentences = sentences_rate(stage, night["precision"])
    stock = stage.rate(stage.stock, "predict_batch_udf fp32")
    rate = night["rows_per_second"]
    note_utilisation(stage, rate)
    return {
        "of_bare_bf16": rate / bare,
        "over_stock": rate / stock,
        "over_sentence_transformers": rate / sentences,
        "padding_share": night["padding_share"],
    }


def frame(stage: Stage) -> Figures:
    """A pandas frame of the sample against the bare engine, which comes before and after."""
    name = "pandas frame"
    stage.warm(stage.frame, name)
    rate, bare = stage.bare_rates("bare half precision", lambda: stage.rate(stage.frame, name))
    return {"frame_of_bare": rate / bare}


def sentences_rate(stage: Stage, compiled: str) -> float:
    """rows/s of sentence-transformers in BF16, but in FP32 where that is what BF16 was `compiled` to: on a CPU without
    BF16 torch emulates it, at a twentieth of the speed, and that would be no comparison."""
    precision = Precision.FP32 if compiled == Precision.FP32 else Precision.BF16
    return stage.rate(stage.sentences, f"sentence-transformers {precision}", dtype=_TORCH_NAMES[precision])


def int8(stage: Stage) -> Figures:
    """INT8 is for CPUs: a nightly run that finds a GPU uses it."""
    if devices.detect() is not Device.CPU:
        raise CannotMeasure("the nightly run scores on the GPU of this machine, in FP16")
    night, bare = stage.bare_rates("bare int8", lambda: stage.score(stage.night, "nightly int8", int8=True), int8=True)
    return {"of_bare_int8": night["rows_per_second"] / bare}


def scaling(stage: Stage) -> Figures:
    """One engine thread in each slot. The run with one slot has another Spark, which ends after it."""
    with stage.another_night(1) as one:
        alone = stage.score(one, "one slot")["rows_per_second"]
    with stage.another_night(2) as two:
        return {"scaling": stage.score(two, "two slots")["rows_per_second"] / alone}


def memory(stage: Stage) -> Figures:
    """The whole corpus once, in a Spark that has run nothing before."""
    folder = stage.state.scores_table / f"ds={WHOLE}"
    with stage.another_night(stage.cores) as night:
        watch = watching.Watch(psutil.Process(night.pid), lambda: watching.rows_written(folder))
        with watch:
            done = night.ask(ds=WHOLE)
    stage.measured("whole corpus, rows/s", done["rows_per_second"])
    stage.measured("whole corpus, rows run", done["distinct"])
    return watching.figures(watch.samples)


def first_batch(stage: Stage) -> Figures:
    """`batch_job score` as a person starts it, JVM and all, until an engine has its first texts."""
    environment = {
        **os.environ,
        "TANDEM_STATE": str(stage.state.state),
        "TANDEM_RELEASES": stage.state.releases_root,
        "TANDEM_REDIS_URL": stage.state.redis_url,
        "TANDEM_SPARK_MASTER": f"local[{stage.cores}]",
    }
    _step(environment, "plan")
    started = time.time()
    _step(environment, "score", "--force")
    path = max((stage.state.runs_dir / WARM).glob("*.json"), key=lambda it: it.stat().st_mtime)
    scoring = run_record.read(path).scoring
    if scoring is None:
        raise CannotMeasure("the run committed nothing")
    return {"first_batch_s": datetime.fromisoformat(scoring.began_at).timestamp() - started}


def interactive(stage: Stage) -> Figures:
    """Chat messages through the service, alone and while the nightly run has the same cores at idle priority."""
    with replicas.replica(stage.place, TANDEM_PRECOMPUTED="false", TANDEM_HARVEST="false") as service:
        alone = _interactive_p95(stage, service.address, "interactive alone")
        refuse_overload(alone)
        with stage.another_night(stage.cores, "idle") as night, ThreadPoolExecutor(1) as background:
            night.ask(ds=WARM, idle=True)
            scoring = background.submit(_score_until_told, night, told := threading.Event())
            _wait_for_rows(stage)
            beside = _interactive_p95(stage, service.address, "interactive beside the nightly run")
            told.set()
            for done in scoring.result():
                stage.measured("nightly beside interactive, rows/s", done["rows_per_second"])
    return {"interactive_p95_ms": beside, "interactive_over_alone": beside / alone}


def refuse_overload(alone_ms: float) -> None:
    """Raises: CannotMeasure where the service cannot even answer in time with the machine to itself."""
    if alone_ms >= _DEADLINE_MS:
        raise CannotMeasure(
            f"alone, without a nightly run, this machine does not answer {INTERACTIVE_RATE:.0f} calls/s within "
            f"{_DEADLINE_MS:,} ms"
        )


def _score_until_told(night: Child, told: threading.Event) -> list[dict[str, Any]]:
    """The sample again and again, so that cores are wanted for as long as it is measured."""
    runs = []
    while not told.is_set():
        runs.append(night.ask(ds=SAMPLE, deduplicate=False, idle=True))
    return runs


def _wait_for_rows(stage: Stage) -> None:
    """Until an engine has opened its file."""
    deadline = time.monotonic() + _STARTING_SECONDS
    while not any((stage.state.scores_table / f"ds={SAMPLE}").rglob("*.parquet")):
        if time.monotonic() > deadline:
            raise CannotMeasure(f"the nightly run had no rows within {_STARTING_SECONDS:.0f} s")
        time.sleep(0.05)


def _interactive_p95(stage: Stage, address: str, name: str) -> float:
    due = arrivals.poisson(INTERACTIVE_RATE, _INTERACTIVE_SECONDS, seed=7)
    texts = stage.sample[: len(due)]
    plan = Plan(
        address=address,
        texts=texts,
        seconds=_INTERACTIVE_SECONDS,
        due=due.tolist(),
        priority="REAL_TIME",
        timeout_ms=_DEADLINE_MS,
    )
    calls = load.run(plan)
    return stage.measured(f"{name}, p95 ms", calls.due_from(calls.due[0] + _SETTLE_SECONDS).p95())


def _step(environment: dict[str, str], step: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "batch_job", step, "--ds", WARM, *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMeasure(f"batch_job {step} ended with {done.returncode}: {done.stderr.strip()[-300:]}")


def note_utilisation(stage: Stage, rate: float) -> None:
    """On a GPU: which share of its arithmetic the nightly run's rate is."""
    gpu = stage.bare.opened["gpu"]
    if peak := flops.peak(gpu):
        work = stage.bare.ask(texts=stage.sample)["flops_per_row"]
        stage.measured(f"model FLOP utilisation of {gpu}", rate * work / peak)
    elif gpu:
        stage.notes.words["model FLOP utilisation"] = f"not told: the peak of {gpu} is not known here"


def note_stages(stage: Stage, done: dict[str, Any]) -> None:
    """In which precision it ran, where the time went, and how busy the devices were while there was something to
    score."""
    stage.notes.words["half precision"] = done["precision"]
    for name, value in done["seconds"].items():
        stage.notes.add(f"seconds: {name}", value)
    stage.measured("nightly half precision, tokens/s", done["tokens_per_second"])
    stage.measured("device busy share", done["busy_share"])

"""python -m tests.benchmarks.bench_recipes: recipes of INT8 compared on three tasks of the default model.

BANKING77's test split and messages of a technical IRC channel are answered by the head `intent`, generated messages by
`mood`, whose labels are the generator's own. INT8 is calibrated on generated messages, as in the default release: none
is of the first two tasks. The order of `RECIPES` follows from the table.
"""

import argparse
import contextlib
import gzip
import json
import random
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from shared_model import demo_labels, devices
from shared_model.building import build, checkpoint, convert, embedding_tables
from shared_model.building.recipes import Quantiser, Recipe, int8_share
from shared_model.commands.make_release import default_heads
from shared_model.encoding import Encoder, Encoding
from shared_model.engine import Engine, open_engine
from shared_model.evaluation import benchmark, corpora
from shared_model.evaluation.agreement import RULES, Truth
from shared_model.evaluation.examples import Examples, read_examples
from shared_model.heads import Heads
from shared_model.output import Floats, OutputSpec
from shared_model.types import Device, Precision
from tests.benchmarks import harness, interleaved
from tests.benchmarks.harness import REPOSITORY, CannotMeasure, Place

DEFAULT_DATA = Path("../shared/data")
DEFAULT_OUT = Path(".tandem/bench/recipes.json")
PACKAGES = ("openvino", "nncf", "torch", "tokenizers", "numpy")
ATTRIBUTION = "BANKING77: CC BY 4.0, Casanueva et al. 2020."

#: The plain recipe first: times are relative to its graph's.
CANDIDATES = (
    Recipe(400),
    Recipe(1000),
    Recipe(400, smoothing=-1),
    Recipe(400, smoothing=0.5),
    Recipe(400, smoothing=0.7),
    Recipe(400, smoothing=0.95),
    Recipe(400, symmetric=True),
    Recipe(400, corrected=False),
    Recipe(400, spared=0.1),
    Recipe(400, spared=0.25),
    Recipe(400, spared=0.25, smoothing=0.7),
    Recipe(400, spared=0.25, symmetric=True),
    Recipe(1000, spared=0.25),
)
_IRC, _GENERATED, _SEED = 2_000, 2_000, 22
#: (rows, tokens) that are timed, in turns so that a busy moment meets all graphs alike.
_TIMED, _ROUNDS = ((1, 16), (64, 32)), 25


@dataclass(frozen=True)
class Task:
    """Texts that one head answers. `truth`: None if they are not labelled."""

    name: str
    output: OutputSpec
    columns: slice
    encodings: Sequence[Encoding]
    truth: Truth | None


@dataclass(frozen=True)
class Outcome:
    """Shares of a task's texts, against fp32. `clear`: that agree where fp32 is certain. `lost_points`: of accuracy,
    None without labels. `error`: root mean square of the differences of raw outputs."""

    agreement: float
    clear: float
    lost_points: float | None
    error: float


@dataclass(frozen=True)
class Row:
    """One recipe. `seconds` and `cpu_seconds`: to quantise; a sparing recipe's include one ranking of the layers.
    `times`: median time of a call by shape, relative to the first recipe's. `failure`: the error of a recipe that
    did not run."""

    recipe: str
    int8_share: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    times: Mapping[str, float] | None = None
    tasks: Mapping[str, Outcome] | None = None
    failure: str = ""


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured. 2 when it could not."""
    args = _parser().parse_args(arguments)
    place = harness.place(PACKAGES)
    try:
        rows = compare((REPOSITORY / args.data).resolve())
    except CannotMeasure as error:
        print(f"bench-recipes: {error}", file=sys.stderr)
        return 2
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(document(rows, place), indent=1, allow_nan=False) + "\n")
    print(f"\n{table(rows)}\n\n{ATTRIBUTION}\nwritten to {args.out}")
    return 0


def compare(data: Path) -> list[Row]:
    made = checkpoint.with_heads(build.default_encoder(), default_heads())
    encoder = Encoder(made.files["tokenizer.json"], made.reads, release="")
    tasks = tasks_of(made.heads, encoder, data)
    model = convert.to_openvino(made)
    texts = corpora.choose(made.output, made.reads)
    calibration, validation = encoder.encode_many(texts.calibration), encoder.encode_many(texts.validation)
    with _opened(Precision.FP32, convert.openvino_files(model)) as fp32:
        expected = {task.name: _raw(fp32, made.heads, task) for task in tasks}
    rows, graphs = [], {}
    for recipe in CANDIDATES:
        print(recipe.name, flush=True)
        # A ranking is part of what a sparing recipe costs.
        quantiser = Quantiser(model, calibration, validation)
        began, cpu = time.perf_counter(), _cpu_seconds()
        try:
            graph = quantiser.apply(recipe)
        except Exception as error:  # noqa: BLE001 - frameworks raise anything; the table tells
            rows.append(Row(recipe.name, failure=str(error)))
            continue
        seconds, cpu = time.perf_counter() - began, _cpu_seconds() - cpu
        share = int8_share(graph)
        embedding_tables.look_up_first(graph)
        graphs[recipe.name] = convert.openvino_files(graph)
        with _opened(Precision.INT8, graphs[recipe.name]) as engine:
            found = {task.name: outcome(task, _raw(engine, made.heads, task), expected[task.name]) for task in tasks}
        rows.append(Row(recipe.name, share, seconds, cpu, {}, found))
    times = relative_times(graphs)
    return [Row(**{**vars(row), "times": times[row.recipe]}) if row.tasks else row for row in rows]


def tasks_of(heads: Heads, encoder: Encoder, data: Path) -> list[Task]:
    """Raises: CannotMeasure if the data are not there."""
    specs = {spec.name: (spec.output, columns) for spec, columns in zip(heads.specs, heads.columns, strict=True)}
    banking, irc = data / "banking77" / "test.csv", data / "irc" / "messages.jsonl.gz"
    for path in (banking, irc):
        if not path.is_file():
            raise CannotMeasure(f"{path} is not there; pass the folder that holds banking77/ and irc/ as DATA=DIR")
    examples = read_examples(banking)
    with gzip.open(irc, "rt") as lines:
        messages = [json.loads(line)["text"] for line in lines]
    strange = random.Random(_SEED).sample([text for text in messages if text.strip()], _IRC)
    generated = dict(islice(demo_labels.mood_examples(_SEED), _GENERATED))
    intent, mood = specs["intent"], specs["mood"]
    moods = corpora.truth_of(_examples(generated), mood[0])
    return [
        Task("banking77", *intent, encoder.encode_many(examples.texts), corpora.truth_of(examples, intent[0])),
        Task("irc", *intent, encoder.encode_many(strange), None),
        Task("moods", *mood, encoder.encode_many(list(generated)), moods),
    ]


def outcome(task: Task, raw: Floats, expected: Floats) -> Outcome:
    """`raw` and `expected`: raw outputs of the task's head (texts, width)."""
    rules, output = RULES[task.output.kind], task.output
    scores, reference = output.scores(raw), output.scores(expected)
    agrees, clear = rules.agrees(scores, reference), rules.clear(reference)
    lost = None
    if task.truth is not None and rules.right:
        lost = 100 * float(rules.right(reference, task.truth).mean() - rules.right(scores, task.truth).mean())
    error = float(np.sqrt(np.square(raw - expected).mean()))
    return Outcome(float(agrees.mean()), float(agrees[clear].mean()), lost, error)


def relative_times(graphs: Mapping[str, Mapping[str, bytes]]) -> dict[str, dict[str, float]]:
    """Median time of a call by recipe and shape, over that of the first recipe."""
    with contextlib.ExitStack() as stack:
        engines = {name: stack.enter_context(_opened(Precision.INT8, files)) for name, files in graphs.items()}
        found: dict[str, dict[str, float]] = {name: {} for name in engines}
        for rows, tokens in _TIMED:
            taken = interleaved.seconds(engines, rows, tokens, _ROUNDS)
            medians = {name: statistics.median(runs) for name, runs in taken.items()}
            first = next(iter(medians.values()))
            for name, median in medians.items():
                found[name][f"{rows}×{tokens}"] = median / first
    return found


def table(rows: Sequence[Row]) -> str:
    """A line for each recipe, as Markdown."""
    header = ("recipe", "INT8 layers", "CPU s", *(f"{r}×{t}" for r, t in _TIMED), "BANKING77 clear", "all", "lost")
    header += ("error", "IRC all", "moods all", "lost")
    lines = [header, ("---",) * len(header), *map(_cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def document(rows: Sequence[Row], place: Place) -> dict[str, Any]:
    return {**asdict(place), "recipes": [asdict(row) for row in rows]}


def _cells(row: Row) -> tuple[str, ...]:
    if row.failure or row.tasks is None or row.times is None:
        return (row.recipe, row.failure, *[""] * 10)
    banking, irc, moods = (row.tasks[name] for name in ("banking77", "irc", "moods"))
    return (
        row.recipe,
        f"{row.int8_share:.0%}",
        f"{row.cpu_seconds:.0f}",
        *(f"{row.times[f'{rows}×{tokens}']:.2f}" for rows, tokens in _TIMED),
        f"{banking.clear:.2%}",
        f"{banking.agreement:.2%}",
        f"{banking.lost_points:.2f}",
        f"{banking.error:.3f}",
        f"{irc.agreement:.2%}",
        f"{moods.agreement:.2%}",
        f"{moods.lost_points:.2f}",
    )


def _examples(labelled: Mapping[str, str]) -> Examples:
    places = [f"generated:{number}" for number in range(len(labelled))]
    return Examples(list(labelled), list(labelled.values()), places, "", "")


def _raw(engine: Engine, heads: Heads, task: Task) -> Floats:
    return benchmark.score_all(engine, _Raw(heads.width), task.encodings, task.name)[:, task.columns]


@dataclass(frozen=True)
class _Raw:
    """Raw outputs as they are."""

    width: int

    @property
    def uncalibrated(self) -> "_Raw":
        return self

    def scores(self, raw: Floats) -> Floats:
        return raw


@contextlib.contextmanager
def _opened(precision: Precision, files: Mapping[str, bytes]) -> Iterator[Engine]:
    with contextlib.closing(open_engine(precision, Device.CPU, files, devices.cores())) as engine:
        yield engine


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench-recipes", description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder with banking77/ and irc/")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""python -m tests.benchmarks.bench_nightly: what Spark costs the engine, and what else one might have used.

Ratios are measured on random rows of one night, each row on its own (duplicates not collapsed), in one run: bare
engine, nightly run and baselines in turn, each warm, each with all cores. The whole night is scored once, for memory.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from batch_job.reporting.cost import cost_per_million
from shared_model.errors import TandemError
from tests.benchmarks import harness, replicas
from tests.benchmarks.harness import REPOSITORY, CannotMeasure, Target
from tests.benchmarks.nightly import corpus, groups
from tests.benchmarks.nightly.corpus import Corpus
from tests.benchmarks.nightly.stage import Notes, Stage

ROUNDS, ROWS = 5, 8_000
#: Of the machine, per hour, in whatever currency.
PRICE = 0.10
DEFAULT_OUT = Path(".tandem/bench/nightly.json")
DEFAULT_DATA = REPOSITORY / "../shared/data"
PACKAGES = (
    "openvino",
    "pyspark",
    "pyarrow",
    "deltalake",
    "tokenizers",
    "torch",
    "transformers",
    "sentence-transformers",
)
#: The rate that a night costs by.
_RATE = "nightly half precision, rows/s"


@dataclass(frozen=True)
class Group:
    """Figures that are measured together; `make bench-nightly ONLY=name` measures them alone. `once`: in the first
    round only."""

    measure: Callable[[Stage], Mapping[str, float]]
    targets: tuple[Target, ...]
    once: bool = False


GROUPS = {
    "half": Group(
        groups.half,
        (
            Target("of_bare_bf16", "ratio", ">= 0.90"),
            Target("over_stock", "ratio", ">= 7"),
            Target("over_sentence_transformers", "ratio", ">= 1.6"),
            Target("padding_share", "ratio", "<= 0.02"),
        ),
    ),
    "int8": Group(groups.int8, (Target("of_bare_int8", "ratio", ">= 0.88"),)),
    "scaling": Group(groups.scaling, (Target("scaling", "ratio", ">= 1.7"),)),
    "first-batch": Group(groups.first_batch, (Target("first_batch_s", "s", "<= 15"),)),
    "interactive": Group(
        groups.interactive,
        (Target("interactive_p95_ms", "ms", "<= 50"), Target("interactive_over_alone", "ratio", "<= 3")),
    ),
    "memory": Group(
        groups.memory,
        (Target("memory_gb", "GB", "<= 3.5"), Target("memory_growth", "ratio", "<= 0.05")),
        once=True,
    ),
}


choose = functools.partial(harness.choose, GROUPS)


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured, whatever it found: the table says which bounds do not hold. 2 when it could not."""
    args = _parser().parse_args(arguments)
    place, notes = harness.place(PACKAGES), Notes()
    try:
        chosen = choose(args.only)
        material = corpus.load(_data(args.data))
        _say(f"texts: {material.source}")
        rounds = [measure(number, args, chosen, material, notes) for number in range(args.rounds)]
    except (CannotMeasure, TandemError) as error:
        print(f"bench-nightly: {error}", file=sys.stderr)
        return 2
    told = conditions(material, args.rows, args.price, notes)
    result = harness.result(targets(chosen), runs(rounds), place, told)
    result.write(args.out)
    print(f"\n{result.table()}\n\nwritten to {args.out}")
    return 0


def targets(chosen: Collection[str]) -> list[Target]:
    return [target for name in chosen for target in GROUPS[name].targets]


def measure(
    number: int, args: argparse.Namespace, chosen: Sequence[str], material: Corpus, notes: Notes
) -> dict[str, float]:
    """One round: figure → value."""
    due = [name for name in chosen if number == 0 or not GROUPS[name].once]
    with replicas.place() as place, Stage(place, material, args.rows, notes, _say) as stage:
        return measure_on(stage, due, f"round {number + 1} of {args.rounds}")


def measure_on(stage: Stage, chosen: Sequence[str], title: str) -> dict[str, float]:
    """Figure → value; what could not be measured is absent."""
    figures: dict[str, float] = {}
    for name in chosen:
        _say(f"{title}: {name}")
        try:
            figures |= GROUPS[name].measure(stage)
        except CannotMeasure as error:
            _say(f"  not measured: {error}")
    return figures


def runs(rounds: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Each figure's values over the rounds in which it was measured."""
    names = dict.fromkeys(name for figures in rounds for name in figures)
    return {name: [float(figures[name]) for figures in rounds if name in figures] for name in names}


def conditions(material: Corpus, rows: int, price: float, notes: Notes) -> dict[str, object]:
    """`price` per hour makes what a million messages cost, round by round."""
    rates = notes.values.get(_RATE, [])
    return {
        "texts": material.source,
        "rows": min(rows, len(material.texts)),
        "duplicates": "not collapsed, but in the whole corpus",
        "price_per_hour": price,
        "cost_per_million_messages": [round(cost_per_million(price, rate), 4) for rate in rates],
        **notes.values,
    }


def _data(given: Path | None) -> Path | None:
    """The folder to read: the one that was named, else the default one if it is there."""
    if given is not None:
        return REPOSITORY / given
    return DEFAULT_DATA if DEFAULT_DATA.is_dir() else None


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench-nightly", description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    parser.add_argument("--data", type=Path, help="folder of the IRC corpus")
    parser.add_argument("--only", default="", help=f"groups to measure, by comma, of {', '.join(GROUPS)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often; a figure is the median")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows that ratios are measured on")
    parser.add_argument("--price", type=float, default=PRICE, help="of the machine, per hour")
    return parser


if __name__ == "__main__":
    sys.exit(main())

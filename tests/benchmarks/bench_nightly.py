"""python -m tests.benchmarks.bench_nightly: what Spark costs the engine, and what else one might have used.

Ratios are measured on random rows of one night, each row on its own (duplicates not collapsed), in one run: bare
engine, nightly run and baselines in turn, round after round in the same processes, each with all cores. Bare engine and
nightly run are warm by the same texts. The whole night is scored once, for memory.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from batch_job.reporting.cost import cost_per_million
from tests.benchmarks import harness, replicas, rounds
from tests.benchmarks.harness import Target
from tests.benchmarks.nightly import corpus, groups
from tests.benchmarks.nightly.corpus import Corpus
from tests.benchmarks.nightly.stage import Notes, Stage
from tests.benchmarks.rounds import Group, Measured

PROGRAM = "bench-nightly"
ROUNDS, ROWS = 5, 8_000
#: Of the machine, per hour, in whatever currency.
PRICE = 0.10
DEFAULT_OUT = Path(".tandem/bench/nightly.json")
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


GROUPS: Mapping[str, Group[Stage]] = {
    "half": Group(
        groups.half,
        (
            Target("of_bare_bf16", "ratio", ">= 0.90"),
            Target("over_stock", "ratio", ">= 7"),
            Target("over_sentence_transformers", "ratio", ">= 1.6"),
            Target("padding_share", "ratio", "<= 0.02"),
        ),
    ),
    "frame": Group(groups.frame, (Target("frame_of_bare", "ratio", ">= 0.90"),)),
    "int8": Group(groups.int8, (Target("of_bare_int8", "ratio", ">= 0.88"),)),
    "scaling": Group(groups.scaling, (Target("scaling", "ratio", ">= 1.7"),)),
    "first-batch": Group(groups.first_batch, (Target("first_batch_s", "s", "<= 18"),)),
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


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured, whatever it found: the table says which bounds do not hold. 2 when it could not."""
    args = _parser().parse_args(arguments)
    return rounds.report(PROGRAM, args.out, harness.place(PACKAGES), lambda: _measured(args))


def _measured(args: argparse.Namespace) -> Measured:
    chosen, notes = rounds.choose(GROUPS, args.only), Notes()
    material = corpus.load(rounds.data_folder(args.data))
    rounds.say(f"texts: {material.source}")
    with replicas.place() as place, Stage(place, material, args.rows, notes, rounds.say) as stage:
        found = [
            rounds.measure_on(stage, GROUPS, rounds.due(GROUPS, chosen, number), f"round {number + 1} of {args.rounds}")
            for number in range(args.rounds)
        ]
    return Measured(rounds.targets(GROUPS, chosen), found, conditions(material, args.rows, args.price, notes))


def conditions(material: Corpus, rows: int, price: float, notes: Notes) -> dict[str, object]:
    """`price` per hour makes what a million messages cost, round by round."""
    rates = notes.values.get(_RATE, [])
    return {
        "texts": material.source,
        "rows": min(rows, len(material.texts)),
        "duplicates": "not collapsed, but in the whole corpus",
        "price_per_hour": price,
        "cost_per_million_messages": [round(cost_per_million(price, rate), 4) for rate in rates],
        **notes.words,
        **notes.values,
    }


def _parser() -> argparse.ArgumentParser:
    parser = rounds.parser(PROGRAM, __doc__, DEFAULT_OUT, GROUPS, ROUNDS)
    parser.add_argument("--data", type=Path, help="folder of the IRC corpus")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows that ratios are measured on")
    parser.add_argument("--price", type=float, default=PRICE, help="of the machine, per hour")
    return parser


if __name__ == "__main__":
    sys.exit(main())

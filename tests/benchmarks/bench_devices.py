"""python -m tests.benchmarks.bench_devices: what can be measured without a GPU of how a GPU is used.

Batches are cut from the texts of a night as on a GPU; the busy share is that of a simulated device, in virtual time.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shared_model.encoding import Encoder
from shared_model.releases.store import Store
from shared_model.settings import StateSettings, load
from tests.benchmarks import harness, rounds
from tests.benchmarks.devices import fill, simulated
from tests.benchmarks.harness import CannotMeasure, Target
from tests.benchmarks.nightly import corpus
from tests.benchmarks.nightly.corpus import Corpus
from tests.benchmarks.rounds import Group, Measured

PROGRAM = "bench-devices"
ROUNDS = 1
DEFAULT_OUT = Path(".tandem/bench/devices.json")
PACKAGES = ("torch", "transformers", "tokenizers", "openvino")


@dataclass
class Stage:
    """The texts of a night, the tokenizer of a release, and what a reader of the figures wants to know besides."""

    texts: Corpus
    encoder: Encoder
    conditions: dict[str, object] = field(default_factory=dict)


def packed_fill(stage: Stage) -> dict[str, float]:
    """The worse of both budgets."""
    found = {budget: fill.fill(stage.texts.texts, stage.encoder, budget) for budget in fill.BUDGETS}
    stage.conditions["packed_fill"] = {str(budget): round(value, 4) for budget, value in found.items()}
    return {"packed_fill": min(found.values())}


def simulated_busy(stage: Stage) -> dict[str, float]:
    """The worst of all ratios."""
    found = {ratio: simulated.busy(ratio) / min(1.0, ratio) for ratio in simulated.RATIOS}
    stage.conditions["simulated_busy"] = {str(ratio): round(value, 4) for ratio, value in found.items()}
    return {"simulated_busy": min(found.values())}


GROUPS: Mapping[str, Group[Stage]] = {
    "fill": Group(packed_fill, (Target("packed_fill", "ratio", ">= 0.95"),)),
    "busy": Group(simulated_busy, (Target("simulated_busy", "ratio", ">= 0.97"),)),
}


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured, whatever it found: the table says which bounds do not hold. 2 when it could not."""
    args = _parser().parse_args(arguments)
    return rounds.report(PROGRAM, args.out, harness.place(PACKAGES), lambda: _measured(args))


def _measured(args: argparse.Namespace) -> Measured:
    chosen = rounds.choose(GROUPS, args.only)
    stage = Stage(corpus.load(rounds.data_folder(args.data)), encoder())
    found = [
        rounds.measure_on(stage, GROUPS, chosen, f"round {number + 1} of {args.rounds}")
        for number in range(args.rounds)
    ]
    conditions = {"texts": stage.texts.source, **stage.conditions}
    return Measured(rounds.targets(GROUPS, chosen), found, conditions)


def encoder() -> Encoder:
    """That of the newest release that is here. Raises: CannotMeasure."""
    store = Store.from_settings(load(StateSettings))
    if not (ids := store.ids()):
        raise CannotMeasure(f"there is no release in {store.files.root}; run `make release`")
    return store.open(ids[-1]).encoder()


def _parser() -> argparse.ArgumentParser:
    parser = rounds.parser(PROGRAM, __doc__, DEFAULT_OUT, GROUPS, ROUNDS)
    parser.add_argument("--data", type=Path, help="folder of the IRC corpus")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""python -m tests.benchmarks.bench_devices: what can be measured without a GPU of how GPUs are used.

Batches are cut from the texts of a night as on a GPU; the busy share is that of a simulated device, in virtual time.
Models in ranks and in stages run on CPU.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shared_model.encoding import Encoder
from shared_model.releases.store import Store
from shared_model.settings import StateSettings, load
from tests.benchmarks import harness, rounds
from tests.benchmarks.devices import fill, simulated, splits, widths
from tests.benchmarks.devices.models import SIZES
from tests.benchmarks.harness import CannotMeasure, Target
from tests.benchmarks.nightly import corpus
from tests.benchmarks.nightly.corpus import Corpus
from tests.benchmarks.rounds import Group, Measured

PROGRAM = "bench-devices"
ROUNDS = 1
DEFAULT_OUT = Path(".tandem/bench/devices.json")
#: INT8 graphs of models with random weights take minutes to make.
KEPT_GRAPHS = Path(".tandem/bench/graphs")
PACKAGES = ("torch", "transformers", "tokenizers", "openvino")


@dataclass
class Stage:
    """The texts of a night, the tokenizer of a release, and what a reader of the figures wants to know besides.
    `models`: whose speed is measured, `seconds` for each way."""

    texts: Corpus
    encoder: Encoder
    models: Sequence[str] = ()
    seconds: float = 0.0
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


def tensor_parallel_delta(stage: Stage) -> dict[str, float]:
    stage.conditions["tp_delta"] = found = splits.tensor_parallel()
    return {"tp_max_delta": max(found.values())}


def pipeline_delta(stage: Stage) -> dict[str, float]:
    stage.conditions["pp_delta"] = found = splits.pipeline()
    return {"pp_max_delta": max(found.values())}


def rank_death(stage: Stage) -> dict[str, float]:
    """The later of a killed rank and one that hangs."""
    stage.conditions["rank_death"] = found = splits.lost_rank_seconds()
    return {"rank_death_s": max(found.values())}


def pipeline_rate(stage: Stage) -> dict[str, float]:
    """The best of all models."""
    speeds: dict[str, dict[str, dict[str, float]]] = {}
    for name in stage.models:
        folder = widths.graph_folder(KEPT_GRAPHS, name)
        speeds[name] = {way: asdict(widths.measure(folder, way, stage.seconds)) for way in widths.WAYS}
    stage.conditions["widths"] = speeds
    rate = "calls_per_second"
    return {"pipeline_rate_over_narrow": max(it["pipeline"][rate] / it["narrow"][rate] for it in speeds.values())}


GROUPS: Mapping[str, Group[Stage]] = {
    "fill": Group(packed_fill, (Target("packed_fill", "ratio", ">= 0.95"),)),
    "busy": Group(simulated_busy, (Target("simulated_busy", "ratio", ">= 0.97"),)),
    "tensor": Group(tensor_parallel_delta, (Target("tp_max_delta", "probability", "<= 0.00001"),)),
    "pipeline": Group(pipeline_delta, (Target("pp_max_delta", "probability", "<= 0.0001"),)),
    "death": Group(rank_death, (Target("rank_death_s", "s", "<= 10"),)),
    "widths": Group(pipeline_rate, (Target("pipeline_rate_over_narrow", "ratio", ">= 0"),)),
}


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured, whatever it found: the table says which bounds do not hold. 2 when it could not."""
    args = _parser().parse_args(arguments)
    return rounds.report(PROGRAM, args.out, harness.place(PACKAGES), lambda: _measured(args))


def _measured(args: argparse.Namespace) -> Measured:
    chosen = rounds.choose(GROUPS, args.only)
    models = rounds.choose((widths.MINILM, *SIZES), args.models)
    stage = Stage(corpus.load(rounds.data_folder(args.data)), encoder(), models, args.seconds)
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
    parser.add_argument("--models", default="MiniLM,bert-base,bert-large", help="by comma, for the group widths")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each way in the group widths")
    return parser


if __name__ == "__main__":
    sys.exit(main())

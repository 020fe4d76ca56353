"""python -m tests.benchmarks.bench_gpu: large FP16 batches on a GPU, beside what the device and other libraries reach.

Models have random weights at published sizes. Lengths are those of the messages, and fixed ones. On CPU the same code
runs, for its tests: figures of a CPU mean nothing here.
"""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shared_model import devices
from shared_model.types import Device
from tests.benchmarks import bench_devices, harness, rounds
from tests.benchmarks.devices import gains, models, rates
from tests.benchmarks.devices.models import Subject
from tests.benchmarks.harness import Target
from tests.benchmarks.nightly import corpus
from tests.benchmarks.rounds import Measured

PROGRAM = "bench-gpu"
DEFAULT_OUT = Path(".tandem/bench/gpu.json")
PACKAGES = ("torch", "transformers", "sentence-transformers", "tokenizers")
#: Exit code where there is no GPU.
NO_GPU = 3
FIXED_TOKENS = (128, 384)
#: A text of the messages' usual length, for single calls.
_ONLINE_TOKENS, _ONLINE_CALLS = 16, 200
#: Models of which the share of the device's rate is promised.
_PROMISED = "bert-large"


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured, whatever it found. 2 when it could not; 3 without a GPU."""
    args = _parser().parse_args(arguments)
    if args.device is Device.CUDA and devices.detect() is not Device.CUDA:
        print(f"{PROGRAM}: no GPU is here that CUDA can use; run it on a host with one", file=sys.stderr)
        return NO_GPU
    return rounds.report(PROGRAM, args.out, harness.place(PACKAGES), lambda: _measured(args))


def _measured(args: argparse.Namespace) -> Measured:
    names = rounds.choose(models.SIZES, args.models)
    found: dict[str, float] = {}
    conditions: dict[str, object] = {"device": args.device.value}
    matmul = rates.matmul(args.device)
    conditions["matmul_tflops"] = round(matmul / 1e12, 3)
    lengths = _lengths(args)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            subject = models.subject(Path(folder), name, args.device)
            with contextlib.closing(subject.engine):
                conditions[name] = measured = _model(subject, lengths, matmul)
                conditions[f"{name}, single calls"] = gains.recorded(subject, models.text(_ONLINE_TOKENS))
            found[f"matmul_share_{name}"] = max(float(it["matmul_share"]) for it in measured.values())
    return Measured(targets(names), [found], conditions)


def targets(names: Sequence[str]) -> list[Target]:
    """Shares of the device's rate; one of them is promised, the others are reported."""
    return [Target(f"matmul_share_{name}", "ratio", ">= 0.5" if name == _PROMISED else ">= 0") for name in names]


def _model(subject: Subject, lengths: Sequence[int], matmul: float) -> dict[str, dict[str, float]]:
    """Kind of lengths → figures."""
    most = subject.encoder.reads.max_tokens
    kinds = {"messages": list(lengths), **{str(fixed): [fixed] * len(lengths) for fixed in FIXED_TOKENS}}
    return {
        kind: _figures(subject, f"{subject.name}, {kind}", [models.text(min(it, most)) for it in tokens], matmul)
        for kind, tokens in kinds.items()
    }


def _figures(subject: Subject, title: str, texts: Sequence[str], matmul: float) -> dict[str, float]:
    rounds.say(title)
    # Once before it counts: memory is measured, and kernels are chosen.
    rates.nightly(subject, texts)
    ours = rates.nightly(subject, texts)
    figures = {
        **ours,
        "matmul_share": ours["flops"] / matmul,
        "over_transformers": ours["rows_per_second"] / rates.transformers(subject, texts),
        "over_sentence_transformers": ours["rows_per_second"] / rates.sentence_transformers(subject, texts),
        **gains.tensor_parallel(subject, texts, ours["rows_per_second"]),
        **gains.compiled(subject, texts),
        **gains.narrow(subject, texts),
        **rates.beside_bulk(subject, models.text(_ONLINE_TOKENS), texts, _ONLINE_CALLS),
    }
    for name, value in figures.items():
        rounds.say(f"  {name}: {value:.4g}")
    return figures


def _lengths(args: argparse.Namespace) -> list[int]:
    """Tokens of as many messages, by the default release's tokenizer."""
    texts = corpus.load(rounds.data_folder(args.data)).texts[: args.rows]
    return [encoding.tokens for encoding in bench_devices.encoder().encode_many(texts)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    parser.add_argument("--device", type=Device, default=Device.CUDA, help="cuda, or cpu for the tests of its code")
    parser.add_argument("--models", default="bert-base,bert-large", help=f"by comma, of {', '.join(models.SIZES)}")
    parser.add_argument("--rows", type=int, default=200_000, help="texts of each kind")
    parser.add_argument("--data", type=Path, help="folder of the IRC corpus")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""build, train-head, gate: make a release and judge it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared_model import settings
from shared_model.commands import common
from shared_model.errors import BadInput, TandemError
from shared_model.output import OutputKind
from shared_model.releases import report
from shared_model.releases.agreement import RULES
from shared_model.releases.settings import GateSettings
from shared_model.settings import StateSettings

if TYPE_CHECKING:
    from shared_model.releases.checkpoint import Checkpoint
    from shared_model.releases.store import Release
    from shared_model.releases.verdict import ReleaseReport, Verdict

#: Heads that come with Tandem, each a folder written by train-head.
HEADS = Path(__file__).parents[1] / "heads"
#: The release that is built where nothing else is asked for.
DEFAULT_NAME = "minilm-banking77"


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    build = commands.add_parser("build", help="build a release and judge it; the first one that passes is promoted")
    build.set_defaults(run=_build)
    build.add_argument("--model", help="Hugging Face classifier or sentence encoder: a folder, or its name on the hub")
    build.add_argument("--name", help=f"the release's; needed with --model, else {DEFAULT_NAME}")
    build.add_argument("--pairs", action="store_true", help="the model reads two texts at a time")
    build.add_argument("--max-tokens", type=int, help="the longest text it reads; default: what it was trained on")
    build.add_argument("--encoder", type=Path, help="encoder for a head; default: all-MiniLM-L6-v2")
    build.add_argument("--head", type=Path, help="folder written by train-head; default: banking77, which is here")
    build.add_argument("--eval", type=Path, help="CSV of text,label (text,text_pair,label) to measure accuracy on")
    build.add_argument("--calibrate", type=Path, help="JSON Lines of {text} ({text, text_pair}) the model will see")
    build.add_argument("--promote", action="store_true", help="promote it though another release is active")
    build.add_argument("--if-missing", action="store_true", help="do nothing when a release is active")

    train = commands.add_parser("train-head", help="train a linear head on frozen sentence embeddings")
    train.set_defaults(run=_train_head)
    train.add_argument("--data", type=Path, required=True, help="CSV of text,label with a header line")
    train.add_argument("--encoder", type=Path)
    train.add_argument("--out", type=Path, required=True)

    gate = commands.add_parser("gate", help="judge a release's variants against fp32 and write its report")
    gate.set_defaults(run=_gate)
    gate.add_argument("--release")
    gate.add_argument("--eval", type=Path)


def _build(args: argparse.Namespace, state: StateSettings) -> int:
    from shared_model.releases import build, texts

    active = _active(state)
    if args.if_missing and active:
        print(f"release {active} is active; nothing to build")
        return 0
    bounds = settings.load(GateSettings)
    checkpoint = _checkpoint(args)
    chosen = texts.choose(checkpoint.output, checkpoint.reads, args.calibrate, args.eval)
    name = args.name or DEFAULT_NAME
    release, judged = build.build(common.store_of(state), checkpoint, name, chosen, bounds, common.say)
    _print_verdicts(release, judged)
    if not judged.passed:
        print(f"release {release.id} was built but not promoted")
        return 1
    if active and not args.promote:
        print(f"release {release.id} passed; {active} stays active until you `canary` or `promote` it")
        return 0
    common.promote(state, release.id)
    return 0


def _checkpoint(args: argparse.Namespace) -> "Checkpoint":
    """What a person wants built. Raises: BadInput for options that contradict each other, or no such model."""
    from shared_model import training
    from shared_model.releases import build, checkpoint

    if args.model is None:
        if args.pairs:
            raise BadInput("--pairs", "goes with --model; a head reads single texts")
        head = training.load_head(args.head or HEADS / "banking77")
        return checkpoint.with_head(args.encoder or build.default_encoder(), head, max_tokens=args.max_tokens)
    if args.head or args.encoder:
        raise BadInput("--model", "is a whole model; --head and --encoder go without it")
    if not args.name:
        raise BadInput("--name", "is needed with --model: a release of this name is built")
    return checkpoint.load(args.model, pairs=args.pairs, max_tokens=args.max_tokens)


def _print_verdicts(release: "Release", judged: "ReleaseReport") -> None:
    for variant in judged.variants:
        print(f"  {variant.name}: {_measured(variant, judged.output)}{'' if variant.passed else '  REFUSED'}")
        for failure in variant.failures:
            print(f"    {failure}")
    print(f"  INT8 made by: {judged.quantisation}; report: {release.place}/{report.MARKDOWN}")


def _measured(variant: "Verdict", output: str) -> str:
    if variant.parity is None:
        return "not measured"
    clear = variant.parity.clear_agreement
    known = "" if clear is None else f" ({clear:.2%} where fp32 is sure)"
    agreed = f"agreement {variant.parity.agreement:.2%}{known}"
    if variant.parity.accuracy is None:
        return agreed
    return f"{agreed}, {RULES[OutputKind(output)].accuracy} {variant.parity.accuracy:.2%}"


def _train_head(args: argparse.Namespace, state: StateSettings) -> None:
    from shared_model import training
    from shared_model.examples import read_examples
    from shared_model.releases import build

    examples = read_examples(args.data)
    common.say(f"training a head for {len(set(examples.labels))} labels on {len(examples.texts)} texts")
    training.train(args.encoder or build.default_encoder(), examples).save(args.out)
    print(f"head written to {args.out}; trained on data with sha256 {examples.sha256}")


def _gate(args: argparse.Namespace, state: StateSettings) -> int:
    from shared_model.releases import gate, texts

    release = common.open_release(args, state)
    reads = release.manifest.reads
    asked = texts.labelled_texts(args.eval, release.output, reads) if args.eval else texts.generated_texts(reads)
    judge = gate.release_judge(release, asked, settings.load(GateSettings))
    judged = gate.judge_release(release, judge, common.say, tried=report.tried_before(release))
    print((release.read_note(report.JSON) or b"").decode(), end="")
    return 0 if judged.passed else 1


def _active(state: StateSettings) -> str:
    """The active release, if there is one that this version can open; else empty."""
    try:
        active = common.read_pointer(state).active
        common.store_of(state).open(active)
    except TandemError:
        return ""
    return active

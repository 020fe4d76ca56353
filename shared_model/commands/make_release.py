"""build, train-head, gate: build and evaluate a release."""

import argparse
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared_model import settings
from shared_model.commands import abstaining, common
from shared_model.errors import BadInput, ReleaseError, TandemError
from shared_model.evaluation import corpora, report
from shared_model.evaluation.agreement import RULES
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.output import OutputKind
from shared_model.settings import StateSettings

if TYPE_CHECKING:
    from shared_model.building.checkpoint import Checkpoint
    from shared_model.evaluation.quality import Baseline
    from shared_model.evaluation.verdict import ReleaseReport, Verdict
    from shared_model.releases.store import Release

#: Heads that ship with Tandem, each a folder written by train-head.
HEADS = Path(__file__).parents[1] / "heads"
#: Name of the release that is built by default.
DEFAULT_NAME = "minilm-banking77"
#: Help on the format of a CSV of examples.
CSV_HELP = "a header line names the columns, such as utterance,intent"


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    _add_build(commands)

    train = common.add_command(
        commands,
        "train-head",
        _train_head,
        help="train a linear head on frozen sentence embeddings",
        more="It tells the columns it read, texts per label, the accuracy in cross-validation, and what to run next.",
        example="--data intents.csv --out my-head",
    )
    train.add_argument("--data", type=Path, required=True, metavar="CSV", help=f"CSV of text,label; {CSV_HELP}")
    train.add_argument("--encoder", type=Path, metavar="DIR", help="sentence encoder (default: all-MiniLM-L6-v2)")
    train.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write the head to")
    train.add_argument(
        "--no-keep-texts",
        action="store_true",
        help="keep no training texts beside the head (default: up to 2,000, in a file for its owner alone; build "
        "calibrates INT8 on them)",
    )

    gate = common.add_command(
        commands,
        "gate",
        _gate,
        help="judge a release's variants against fp32 and write its report",
        more="The report, report.md and report.json beside the release's files, replaces the one before it.",
        example="my-model --eval held-out.csv --min-accuracy 0.9",
    )
    common.add_release(gate, optional=True)
    gate.add_argument("--release", dest="named", metavar="RELEASE", help="another way to name it (default: @active)")
    _add_evaluation(gate)


def _add_build(commands: "argparse._SubParsersAction[Any]") -> None:
    build = common.add_command(
        commands,
        "build",
        _build,
        help="build a release and judge it; the first one that passes is promoted",
        more="From a whole model (--model), from a head of train-head (--head), or else the default release.",
        example="--model my-bert/ --name my-model --eval held-out.csv --calibrate sample.jsonl",
    )
    build.add_argument(
        "--model",
        help="Hugging Face classifier or sentence encoder: a folder, or its name on the hub (default: an encoder with "
        "a head)",
    )
    build.add_argument("--name", help=f"the release's; needed with --model (default: {DEFAULT_NAME})")
    build.add_argument("--pairs", action="store_true", help="the model reads two texts at a time")
    build.add_argument("--max-tokens", type=int, metavar="N", help="longest text (default: what it was trained on)")
    build.add_argument("--encoder", type=Path, metavar="DIR", help="encoder for a head (default: all-MiniLM-L6-v2)")
    build.add_argument("--head", type=Path, metavar="DIR", help="folder written by train-head (default: banking77)")
    _add_evaluation(build)
    build.add_argument(
        "--calibrate",
        type=Path,
        metavar="FILE",
        help=f"JSON Lines of {{text}} ({{text, text_pair}}) that the model will see, {corpora.MIN_SAMPLE} lines or "
        "more, or a CSV as for --eval; INT8 is calibrated on them (default: the texts that train-head kept "
        "beside the head, else generated messages to a bank)",
    )
    abstaining.add_options(build)
    build.add_argument("--promote", action="store_true", help="promote it though another release is active")
    build.add_argument("--if-missing", action="store_true", help="do nothing when a release is active")


def _add_evaluation(parser: common.Parser) -> None:
    parser.add_argument(
        "--eval",
        type=Path,
        metavar="CSV",
        help=f"CSV of text,label (text,text_pair,label) to measure accuracy on; {CSV_HELP} (default: none, agreement "
        "with fp32 on generated messages alone is judged)",
    )
    parser.add_argument(
        "--min-accuracy",
        type=float,
        metavar="SHARE",
        help="least accuracy on --eval, such as 0.9 (default: TANDEM_GATE_MIN_ACCURACY, else none)",
    )


def _build(args: argparse.Namespace, state: StateSettings) -> int:
    from shared_model.building import build

    active = _active(state)
    if args.if_missing and active:
        print(f"release {active.id} is active; nothing to build")
        return 0
    bounds = settings.load(GateSettings, gate_min_accuracy=args.min_accuracy)
    checkpoint = _checkpoint(args)
    chosen = _chosen_texts(args, checkpoint)
    store, name = common.store_of(state), args.name or DEFAULT_NAME
    built = build.make(store, checkpoint, name, chosen, bounds, common.say, abstaining.chosen(args))
    release = built.release
    if active and release.id == active.id and release.read_note(report.JSON):
        print(f"release {release.id} is built already and active; its report stays (`gate` judges it anew)")
        return 0
    judged = built.judged(common.say, _baseline(active, release, args.eval, bounds))
    common.sign_verdict(state, release)
    _print_verdicts(release, judged)
    if not judged.passed:
        print(f"release {release.id} was built but not promoted")
        return 1
    if active and active.id != release.id and not args.promote:
        print(f"release {release.id} passed; {active.id} stays active until you `canary` or `promote` it")
        return 0
    common.promote(state, release.id)
    return 0


def _chosen_texts(args: argparse.Namespace, checkpoint: "Checkpoint") -> corpora.Texts:
    """The texts to build with: calibrated on --calibrate, else on the texts kept beside the head, else generated."""
    from shared_model.building import training_texts

    kept = training_texts.find(args.head) if args.head and args.calibrate is None else None
    least = corpora.MIN_SAMPLE if kept is None else 1
    chosen = corpora.choose(checkpoint.output, checkpoint.reads, kept or args.calibrate, args.eval, least)
    if chosen.gate.columns:
        common.say(f"{args.eval}: {chosen.gate.columns}")
    common.say(f"INT8 is calibrated on at most {chosen.calibrated_on(len(chosen.calibration))}")
    if not chosen.own and (args.model or args.head):
        common.say(
            "these are messages to a bank, not texts of yours; --calibrate FILE takes "
            f"{corpora.MIN_SAMPLE} or more of those"
        )
    return chosen


def _baseline(
    active: "Release | None", release: "Release", evaluation: Path | None, bounds: GateSettings
) -> "Baseline | None":
    """The active release's accuracy on the same labelled texts; None if it cannot be compared."""
    from shared_model.evaluation import gate

    if active is None or evaluation is None or active.id == release.id:
        return None
    # Comparable are releases with the same labels, or values, and the same kind of input.
    kinds = [(it.output.kind, it.output.width, sorted(it.labels), it.manifest.reads.pairs) for it in (active, release)]
    if kinds[0] != kinds[1]:
        common.say(f"the active release {active.id} gives other answers; it is not compared on {evaluation}")
        return None
    common.say(f"the active release {active.id} on {evaluation}")
    try:
        asked = corpora.labelled_texts(evaluation, active.output, active.manifest.reads)
        return gate.baseline(active, asked, bounds)
    except ReleaseError as error:
        # A damaged active release must not prevent its replacement.
        common.say(f"not compared: {error}")
        return None


def _checkpoint(args: argparse.Namespace) -> "Checkpoint":
    """The checkpoint that the options name. Raises: BadInput for contradictory options, or an unknown model."""
    from shared_model.building import build, checkpoint
    from shared_model.building.head import load_head

    if args.model is None:
        if args.pairs:
            raise BadInput("--pairs", "goes with --model; a head reads single texts")
        head = load_head(args.head or HEADS / "banking77")
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
        if variant.slow_here:
            print(f"    slow here: {variant.slow_here}")
    for line in judged.quality.in_words() if judged.quality else ():
        print(f"  {line}")
    for line in (*report.losses_in_words(judged), *report.calibration_in_words(judged)):
        print(f"  {line}")
    for failure in judged.failures:
        print(f"  REFUSED: {failure}")
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
    from shared_model.building import build, train_head, training_texts
    from shared_model.evaluation.examples import read_examples

    examples = read_examples(args.data)
    common.say(f"{args.data}: {examples.columns}")
    common.say(f"training a head for {len(set(examples.labels))} labels on {len(examples.texts)} texts")
    trained = train_head.train(args.encoder or build.default_encoder(), examples)
    trained.head.save(args.out)
    for line in train_head.in_words(examples.labels, trained):
        print(line)
    print(f"head written to {args.out}; trained on data with sha256 {examples.sha256}")
    if args.no_keep_texts:
        training_texts.remove(args.out)
    else:
        kept = training_texts.keep(args.out, examples.texts)
        file = args.out / training_texts.FILE
        print(f"{kept:,} training texts kept in {file} for build to calibrate on; --no-keep-texts keeps none")
    # A valid release name derived from the folder's.
    name = re.sub("[^a-z0-9]+", "-", args.out.absolute().name.lower())[:48].strip("-") or "my-model"
    options = ["build", "--name", name, "--head", args.out]
    if args.encoder:
        options += ["--encoder", args.encoder]
    if args.no_keep_texts and len(examples.texts) >= corpora.MIN_SAMPLE:
        options += ["--calibrate", args.data]
    print(f"next: python -m shared_model {shlex.join(map(str, options))} --eval HELD-OUT.csv")


def _gate(args: argparse.Namespace, state: StateSettings) -> int:
    from shared_model.evaluation import gate

    release = common.open_release(state, args.release if args.named is None else args.named)
    reads = release.manifest.reads
    asked = corpora.generated_texts(reads)
    if args.eval:
        asked = corpora.in_order(corpora.labelled_texts(args.eval, release.output, reads), asked)
    bounds = settings.load(GateSettings, gate_min_accuracy=args.min_accuracy)
    if asked.columns:
        common.say(f"{args.eval}: {asked.columns}")
    active = _baseline(_active(state), release, args.eval, bounds)
    evaluator = gate.release_evaluator(release, asked, bounds)
    judged = gate.evaluate_release(
        release,
        evaluator,
        common.say,
        tried=report.tried_before(release),
        active=active,
        calibration=report.calibrated_before(release),
    )
    common.sign_verdict(state, release)
    print((release.read_note(report.JSON) or b"").decode(), end="")
    return 0 if judged.passed else 1


def _active(state: StateSettings) -> "Release | None":
    """The active release, or None if there is no active release that this version can open."""
    try:
        return common.store_of(state).open(common.read_pointer(state).active)
    except TandemError:
        return None

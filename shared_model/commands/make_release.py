"""build, gate: build and evaluate a release."""

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared_model import settings
from shared_model.commands import abstaining, by_head, common
from shared_model.errors import BadInput, ReleaseError, TandemError
from shared_model.evaluation import corpora, report
from shared_model.evaluation.agreement import RULES
from shared_model.evaluation.calibration import Abstain
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.heads import Heads
from shared_model.output import OutputKind
from shared_model.settings import StateSettings

if TYPE_CHECKING:
    from shared_model.building.checkpoint import Checkpoint
    from shared_model.building.head import Head
    from shared_model.evaluation.parity import Parity
    from shared_model.evaluation.quality import Baseline
    from shared_model.evaluation.verdict import HeadReport, ReleaseReport
    from shared_model.releases.store import Release

#: Heads that ship with Tandem, in folders written by train-head.
HEADS = Path(__file__).parents[1] / "heads"
#: Name of the release that is built by default.
DEFAULT_NAME = "minilm-banking77"
#: When its answers abstain, by head, where the options do not say: off topic.
DEFAULT_ABSTAIN = {"in_scope": Abstain(on=("no",))}


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    _add_build(commands)

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
    build.add_argument(
        "--head", type=Path, metavar="DIR", help="folder written by train-head (default: banking77, demo)"
    )
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
    build.add_argument(
        "--promote", action="store_true", help="promote it, as the model of its name, though one is active"
    )
    build.add_argument("--if-missing", action="store_true", help="do nothing when a release is active")


def _add_evaluation(parser: common.Parser) -> None:
    parser.add_argument(
        "--eval",
        action="append",
        default=[],
        metavar="[HEAD=]CSV",
        help=f"CSV of text,label (text,text_pair,label) to measure accuracy on; {common.CSV_HELP} (default: none, "
        "agreement with fp32 on generated messages alone is judged); again for further heads, each with its name",
    )
    parser.add_argument(
        "--min-accuracy",
        type=float,
        metavar="SHARE",
        help="least accuracy on --eval, such as 0.9 (default: TANDEM_GATE_MIN_ACCURACY, else none)",
    )


def _build(args: argparse.Namespace, state: StateSettings) -> int:
    from shared_model.building import build

    active = _active(state, args.name or DEFAULT_NAME)
    if args.if_missing and active:
        print(f"release {active.id} is active; nothing to build")
        return 0
    bounds = settings.load(GateSettings, gate_min_accuracy=args.min_accuracy)
    checkpoint = _checkpoint(args)
    default = {} if args.model or args.head else DEFAULT_ABSTAIN
    abstain = {**default, **abstaining.chosen(args, checkpoint.heads)}
    chosen = _chosen_texts(args, checkpoint)
    store, name = common.store_of(state), args.name or DEFAULT_NAME
    built = build.make(store, checkpoint, name, chosen, bounds, common.say, abstain)
    release = built.release
    if active and release.id == active.id and release.read_note(report.JSON):
        print(f"release {release.id} is built already and active; its report stays (`gate` judges it anew)")
        return 0
    evaluation = _evaluations(args.eval, release.heads)
    judged = built.judged(common.say, _baselines(active, release, evaluation, bounds))
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
    heads, evaluation = checkpoint.heads, _evaluations(args.eval, checkpoint.heads)
    chosen = corpora.choose(
        checkpoint.output,
        checkpoint.reads,
        kept or args.calibrate,
        evaluation.get(heads.first.name),
        least,
        [(spec, evaluation.get(spec.name)) for spec in heads.further],
    )
    _say_columns(evaluation, heads, chosen.gate)
    common.say(f"INT8 is calibrated on at most {chosen.calibrated_on(len(chosen.calibration))}")
    if not chosen.own and (args.model or args.head):
        common.say(
            "these are messages to a bank, not texts of yours; --calibrate FILE takes "
            f"{corpora.MIN_SAMPLE} or more of those"
        )
    return chosen


def _evaluations(given: Sequence[str], heads: Heads) -> dict[str, Path]:
    """The CSV of each head by name, of `--eval [HEAD=]CSV`. Raises: BadInput for a head that is named twice."""
    return {name: Path(path) for name, path in by_head.parse("--eval", given, heads).items()}


def _say_columns(evaluation: Mapping[str, Path], heads: Heads, texts: corpora.GateTexts) -> None:
    for name, path in evaluation.items():
        found = texts if name == heads.first.name else texts.by_head[name]
        common.say(f"{path}: {found.columns}")


def _baselines(
    active: "Release | None", release: "Release", evaluation: Mapping[str, Path], bounds: GateSettings
) -> "dict[str, Baseline]":
    """The active release's accuracy on the same labelled texts, by head; those that cannot be compared are left out."""
    from shared_model.evaluation import gate

    if active is None or not evaluation or active.id == release.id:
        return {}
    # Comparable are heads with the same labels, or values, of releases with the same kind of input.
    before, now = (
        {spec.name: (spec.output.kind, spec.output.width, sorted(spec.output.names)) for spec in it.heads.specs}
        for it in (active, release)
    )
    paired = active.manifest.reads.pairs == release.manifest.reads.pairs
    for name in [name for name in evaluation if not paired or before.get(name) != now[name]]:
        common.say(f"the active release {active.id} gives other answers; it is not compared on {evaluation[name]}")
    same = {name: path for name, path in evaluation.items() if paired and before.get(name) == now[name]}
    if not same:
        return {}
    common.say(f"the active release {active.id} on {', '.join(map(str, same.values()))}")
    try:
        outputs = {spec.name: spec.output for spec in active.heads.specs}
        reads = active.manifest.reads
        asked = {name: corpora.labelled_texts(path, outputs[name], reads) for name, path in same.items()}
        return gate.baselines(active, asked, bounds)
    except ReleaseError as error:
        # A damaged active release must not prevent its replacement.
        common.say(f"not compared: {error}")
        return {}


def _checkpoint(args: argparse.Namespace) -> "Checkpoint":
    """The checkpoint that the options name. Raises: BadInput for contradictory options, or an unknown model."""
    from shared_model.building import build, checkpoint
    from shared_model.building.head import load_heads

    if args.model is None:
        if args.pairs:
            raise BadInput("--pairs", "goes with --model; a head reads single texts")
        heads = load_heads(args.head) if args.head else default_heads()
        return checkpoint.with_heads(args.encoder or build.default_encoder(), heads, max_tokens=args.max_tokens)
    if args.head or args.encoder:
        raise BadInput("--model", "is a whole model; --head and --encoder go without it")
    if not args.name:
        raise BadInput("--name", "is needed with --model: a release of this name is built")
    return checkpoint.load(args.model, pairs=args.pairs, max_tokens=args.max_tokens)


def default_heads() -> "tuple[Head, ...]":
    """Those of the default release: intent, mood and in_scope."""
    from shared_model.building.head import load_heads

    [intent] = load_heads(HEADS / "banking77")
    return (replace(intent, name="intent"), *load_heads(HEADS / "demo"))


def _print_verdicts(release: "Release", judged: "ReleaseReport") -> None:
    for variant in judged.variants:
        measured = [(head, variant.parity_of(head.head, judged.head)) for head in judged.every_head]
        line = "; ".join(f"{_prefix(judged, head)}{_measured(parity, head.output)}" for head, parity in measured)
        print(f"  {variant.name}: {line}{'' if variant.passed else '  REFUSED'}")
        for failure in variant.failures:
            print(f"    {failure}")
        if variant.slow_here:
            print(f"    slow here: {variant.slow_here}")
    for head in judged.every_head:
        words = (head.quality.in_words() if head.quality else ()), report.losses_in_words(judged, head)
        for line in itertools.chain(*words, report.calibration_in_words(head)):
            print(f"  {_prefix(judged, head)}{line}")
    for failure in judged.failures:
        print(f"  REFUSED: {failure}")
    print(f"  INT8 made by: {judged.quantisation}; report: {release.place}/{report.MARKDOWN}")


def _prefix(judged: "ReleaseReport", head: "HeadReport") -> str:
    """The head of a line, where there are several."""
    return f"{head.head}: " if judged.heads else ""


def _measured(parity: "Parity | None", output: str) -> str:
    if parity is None:
        return "not measured"
    clear = parity.clear_agreement
    known = "" if clear is None else f" ({clear:.2%} where fp32 is sure)"
    agreed = f"agreement {parity.agreement:.2%}{known}"
    if parity.accuracy is None:
        return agreed
    return f"{agreed}, {RULES[OutputKind(output)].accuracy} {parity.accuracy:.2%}"


def _gate(args: argparse.Namespace, state: StateSettings) -> int:
    from shared_model.evaluation import gate

    release = common.open_release(state, args.release if args.named is None else args.named)
    reads, heads, evaluation = release.manifest.reads, release.heads, _evaluations(args.eval, release.heads)
    outputs = {spec.name: spec.output for spec in heads.specs}
    labelled = {name: corpora.labelled_texts(path, outputs[name], reads) for name, path in evaluation.items()}
    by_head = {spec.name: labelled.get(spec.name) for spec in heads.further}
    asked = corpora.judged_on(labelled.get(heads.first.name), by_head, corpora.generated_texts(reads))
    bounds = settings.load(GateSettings, gate_min_accuracy=args.min_accuracy)
    _say_columns(evaluation, heads, asked)
    active = _baselines(_active(state, release.manifest.name), release, evaluation, bounds)
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


def _active(state: StateSettings, model: str) -> "Release | None":
    """The active release of a model, else of the default one; None if this version can open neither."""
    try:
        found = common.find_pointers(state)
        pointer = found.others.get(model) or found.default
        return common.store_of(state).open(pointer.active) if pointer else None
    except TandemError:
        return None

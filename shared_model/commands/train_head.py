"""train-head: train linear heads on frozen sentence embeddings."""

import argparse
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared_model import heads
from shared_model.commands import common
from shared_model.errors import BadInput
from shared_model.evaluation import corpora
from shared_model.evaluation.examples import read_examples
from shared_model.heads import DEFAULT_HEAD
from shared_model.output import OutputKind
from shared_model.settings import StateSettings

if TYPE_CHECKING:
    from shared_model.building.train_head import Task

_KINDS = (OutputKind.SINGLE_LABEL, OutputKind.MULTI_LABEL, OutputKind.REGRESSION)


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    train = common.add_command(
        commands,
        "train-head",
        _train_head,
        help="train a linear head, or several, on frozen sentence embeddings",
        more="It tells the columns it read, texts per label, the accuracy in cross-validation, and what to run next.",
        example="--data intents.csv --out my-head",
    )
    data = train.add_mutually_exclusive_group(required=True)
    data.add_argument(
        "--data", type=Path, metavar="CSV", help=f"CSV of text,label; {common.CSV_HELP} (default: --head)"
    )
    data.add_argument(
        "--head",
        action="append",
        metavar="NAME[:KIND]=CSV",
        help=f"a head with a name, and its CSV; again for each further head. KIND: {', '.join(_KINDS)} (default: "
        f"{_KINDS[0]}); several labels, or several numbers of a regression, are joined by |",
    )
    train.add_argument("--encoder", type=Path, metavar="DIR", help="sentence encoder (default: all-MiniLM-L6-v2)")
    train.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write the head to")
    train.add_argument(
        "--no-keep-texts",
        action="store_true",
        help="keep no training texts beside the head (default: up to 2,000, in a file for its owner alone; build "
        "calibrates INT8 on them)",
    )


def _train_head(args: argparse.Namespace, state: StateSettings) -> None:
    from shared_model.building import build, fit_head, head, train_head, training_texts

    tasks = [_task(argument) for argument in args.head or [f"{DEFAULT_HEAD}={args.data}"]]
    if len({task.name for task in tasks}) < len(tasks):
        raise BadInput("--head", "names one head twice")
    for task in tasks:
        labels = [label for cell in task.examples.labels for label in fit_head.labels_in(task.kind, cell)]
        head_of = f"the head {task.name}" if args.head else "a head"
        what = f"{len(set(labels))} labels" if labels else "values"
        common.say(f"training {head_of} for {what} on {len(task.examples.texts)} texts")
    trained = train_head.train(args.encoder or build.default_encoder(), tasks)
    head.save_heads(args.out, [one.head for one in trained])
    for task, one in zip(tasks, trained, strict=True):
        labels = [label for cell in task.examples.labels for label in fit_head.labels_in(task.kind, cell)]
        for line in train_head.in_words(labels, one):
            print(f"{task.name}: {line}" if args.head else line)
    digests = ", ".join(task.examples.sha256 for task in tasks)
    print(f"head written to {args.out}; trained on data with sha256 {digests}")
    texts = train_head.distinct_texts(tasks)
    if args.no_keep_texts:
        training_texts.remove(args.out)
    else:
        kept = training_texts.keep(args.out, texts)
        file = args.out / training_texts.FILE
        print(f"{kept:,} training texts kept in {file} for build to calibrate on; --no-keep-texts keeps none")
    print(f"next: python -m shared_model {shlex.join(_next_command(args, tasks, len(texts)))}")


def _task(argument: str) -> "Task":
    """Read the CSV of one `--head NAME[:KIND]=CSV`. Raises: BadInput."""
    from shared_model.building.train_head import Task

    named, equals, path = argument.partition("=")
    name, _, kind = named.partition(":")
    if not equals or (kind and kind not in _KINDS):
        raise BadInput("--head", f"{argument!r} is not NAME[:KIND]=CSV, with a KIND of {', '.join(_KINDS)}")
    chosen = OutputKind(kind or OutputKind.SINGLE_LABEL)
    try:
        heads.check_name(name)
    except ValueError as error:
        raise BadInput("--head", str(error)) from error
    examples = read_examples(Path(path), unlabelled=chosen is OutputKind.MULTI_LABEL)
    common.say(f"{path}: {examples.columns}")
    return Task(examples, name, chosen)


def _next_command(args: argparse.Namespace, tasks: "list[Task]", texts: int) -> list[str]:
    # A valid release name derived from the folder's.
    name = re.sub("[^a-z0-9]+", "-", args.out.absolute().name.lower())[:48].strip("-") or "my-model"
    options = ["build", "--name", name, "--head", str(args.out)]
    if args.encoder:
        options += ["--encoder", str(args.encoder)]
    if args.data and args.no_keep_texts and texts >= corpora.MIN_SAMPLE:
        options += ["--calibrate", str(args.data)]
    evaluations = [f"{task.name}=HELD-OUT-{task.name}.csv" for task in tasks] if args.head else ["HELD-OUT.csv"]
    return [*options, *(word for evaluation in evaluations for word in ("--eval", evaluation))]

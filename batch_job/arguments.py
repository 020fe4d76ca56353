"""The parts of which the command line of every step is made."""

import argparse
import textwrap
from typing import TypeAlias

from batch_job.launch import spark_submit
from shared_model.objects import located

Steps: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

_COLUMNS = 100
#: Exit codes that any step may have, and those of some.
_ANY_CODE = (
    "0 done",
    "2 input, environment or settings are wrong",
    f"{spark_submit.UNEXPECTED} an unexpected error",
    f"{spark_submit.UNAVAILABLE} Redis or the store does not answer, or workers were killed",
)


def add_record(step: argparse.ArgumentParser, help: str) -> None:
    step.add_argument("--record", type=located, metavar="FILE", help=help)


def count(text: str) -> int:
    """A number of rows. Raises: ValueError, which argparse turns into a line and exit code 2."""
    if (number := int(text)) < 0:
        raise ValueError
    return number


def positive(text: str) -> int:
    """As `count`, without 0."""
    if not (number := count(text)):
        raise ValueError
    return number


def step(
    steps: Steps, name: str, help: str, about: str, example: str, *codes: str, day: str | None = ""
) -> argparse.ArgumentParser:
    """`about`: more of what it does; `codes`: exit codes besides those of any step; `day`: help of an optional day,
    None for a step that is not about one."""
    ends = "; ".join(sorted([*_ANY_CODE, *codes], key=lambda code: int(code.partition(" ")[0])))
    parser = steps.add_parser(
        name,
        help=help,
        description=textwrap.fill(f"{help[0].upper()}{help[1:]}. {about}", _COLUMNS),
        epilog=f"exit codes: {ends}\nexample:    python -m batch_job {name} {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if day is not None:
        parser.add_argument(
            "--ds", required=not day, metavar="DAY", help=day or "the day, YYYY-MM-DD", default="" if day else None
        )
    model = "model that scores; default: TANDEM_NIGHTLY_MODEL, else the default model"
    parser.add_argument("--model", default="", metavar="NAME", help=model)
    return parser

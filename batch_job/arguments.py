"""The arguments that several steps take, and how a step is declared."""

import argparse
import textwrap
from typing import TypeAlias

from batch_job.checks import gate
from batch_job.launch import spark_submit
from shared_model.objects import located

Steps: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

#: The day of examples.
DAY = "2026-01-14"
_COLUMNS = 100
#: Exit codes that any step may have.
_ANY_CODE = (
    "0 done",
    "2 input, environment or settings are wrong",
    f"{spark_submit.UNEXPECTED} an unexpected error",
    f"{spark_submit.UNAVAILABLE} Redis or the store does not answer, or workers were killed",
)


def add_step(
    steps: Steps, name: str, help: str, about: str, example: str, *codes: str, day: str | None = ""
) -> argparse.ArgumentParser:
    """`about`: more of what it does; `codes`: exit codes besides those of any step; `day`: help of an optional day,
    None for a step that is not about one."""
    ends = "; ".join(sorted([*_ANY_CODE, *codes], key=lambda code: int(code.partition(" ")[0])))
    step = steps.add_parser(
        name,
        help=help,
        description=textwrap.fill(f"{help[0].upper()}{help[1:]}. {about}", _COLUMNS),
        epilog=f"exit codes: {ends}\nexample:    python -m batch_job {name} {example}".rstrip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if day is not None:
        step.add_argument(
            "--ds", required=not day, metavar="DAY", help=day or "the day, YYYY-MM-DD", default="" if day else None
        )
    model = "model that scores; default: TANDEM_NIGHTLY_MODEL, else the default model"
    step.add_argument("--model", default="", metavar="NAME", help=model)
    return step


def add_record(step: argparse.ArgumentParser, help: str) -> None:
    step.add_argument("--record", type=located, metavar="FILE", help=help)


def add_accept(step: argparse.ArgumentParser) -> None:
    accept = (
        "commit although this gate fails, after a person has looked; may be given again; default: none. labels: the "
        "distribution of labels differs from that of an earlier day. agreement: INT8 and half precision differ on "
        "texts that are clear to half precision. agreement-drop: they differ on more texts than on an earlier day"
    )
    step.add_argument("--accept", action="append", default=[], choices=gate.ACCEPTABLE, help=accept)


def add_answer(step: argparse.ArgumentParser) -> None:
    step.add_argument("--by", default="", metavar="NAME", help="the person; default: the user of this process")
    step.add_argument("--comment", default="", metavar="TEXT", help="why; default: none")


def add_printing(step: argparse.ArgumentParser, what: str, as_json: str) -> None:
    step.add_argument("--limit", type=count, default=20, metavar="N", help=f"most {what} to print; default: 20; 0: all")
    step.add_argument("--json", action="store_true", help=as_json)


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

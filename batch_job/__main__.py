"""python -m batch_job: the nightly run, step by step. Steps exchange one run record.

Exit codes: 0 done, 1 a gate refused the partition, 2 input, environment or settings are wrong, 3 a newer attempt owns
the partition, 4 (of plan) the messages are not there, 70 nobody foresaw it: a traceback comes before its line.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from batch_job import launch, plan, records
from batch_job.checks import gate
from batch_job.settings import NightlySettings
from shared_model import settings
from shared_model.errors import JobError
from shared_model.settings import StateSettings


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    return launch.exit_code(args.step, lambda: args.run(args, settings.load(StateSettings)))


def _here(args: argparse.Namespace, state: StateSettings) -> None:
    # Not sooner: what these steps import takes longer than all that `score` does in this process.
    from batch_job.steps import STEPS

    STEPS[args.step](args, state)


def _score(args: argparse.Namespace, state: StateSettings) -> None:
    accepted = [f"--accept={gate}" for gate in args.accept]
    _spark_submit(args, state, [*(["--force"] if args.force else []), *accepted])


def _drain(args: argparse.Namespace, state: StateSettings) -> None:
    _spark_submit(args, state, ["--drain"])


def _spark_submit(args: argparse.Namespace, state: StateSettings, flags: list[str]) -> None:
    master = settings.load(NightlySettings).spark_master
    given = {**os.environ, "TANDEM_RUNTIME_PREFIX": sys.prefix}
    path = str(records.find(args.record, args.ds, state))
    command = [*plan.spark_submit_command(args.ds, path, master, given), *flags]
    environment = {**os.environ, **plan.spark_environment(given)}
    # It would end with 1 itself, or not at all be there.
    if missing := plan.missing_program(environment):
        raise JobError(missing)
    sys.stdout.flush()
    os.execvpe(command[0], command, environment)  # noqa: S606 (spark-submit takes our place, exit code and all)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m batch_job", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    planned = _step(
        steps, "plan", _here, "pin the release, check and fingerprint the day's messages, write the run record"
    )
    planned.add_argument("--wait", help="seconds to wait for messages that are not there; default: a setting")
    score = _step(steps, "score", _score, "score the day in Spark and commit the scores")
    score.add_argument("--force", action="store_true", help="score again what is committed already")
    accept = "commit though this gate fails: a person has looked; may be given again"
    score.add_argument("--accept", action="append", default=[], choices=gate.ACCEPTABLE, help=accept)
    _step(steps, "drain", _drain, "answer deferred requests in Spark, without scoring the day")
    publish = _step(steps, "publish", _here, "publish the committed scores to Redis, unless a newer day is there")
    publish.add_argument("--publish", action="store_true", help="whatever is newer, or was rolled back")
    rollback = _step(steps, "rollback", _here, "take the day's published scores back; the epoch before answers")
    rollback.add_argument("--release", default="", help="release id; default: the active one")
    _step(steps, "report", _here, "print the run; fail unless its counts add up")
    read = _step(steps, "read", _here, "print committed scores, tab-separated")
    read.add_argument("--limit", type=_count, default=20, help="rows, 20 unless told; 0: all")
    read.add_argument("--json", action="store_true", help="every column, one JSON object a line")
    return parser


def _count(text: str) -> int:
    """A number of rows. Raises: ValueError, which argparse turns into a line and exit code 2."""
    if (number := int(text)) < 0:
        raise ValueError
    return number


def _step(
    steps: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace, StateSettings], None],
    help: str,
) -> argparse.ArgumentParser:
    step = steps.add_parser(name, help=help)
    step.set_defaults(run=run)
    step.add_argument("--ds", required=True, help="the day, YYYY-MM-DD")
    step.add_argument("--record", type=Path, help="run record; default: a new one for plan, else the day's newest")
    return step


if __name__ == "__main__":
    sys.exit(main())

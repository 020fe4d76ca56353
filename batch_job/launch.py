"""Start `score` or `drain` inside spark-submit. Standard library only until the Python is known to be the right one."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from batch_job import plan, record


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="score")
    add_arguments(parser)
    args = parser.parse_args(arguments)
    try:
        run = record.read(args.record)
    except record.RecordError as error:
        return complain("score", str(error))
    if problem := plan.wrong_python(run.runtime.prefix, sys.prefix, "the driver"):
        return complain("score", problem)
    from batch_job import job

    if args.drain:
        return exit_code("drain", lambda: job.drain_only(args.ds, args.record))
    return exit_code("score", lambda: job.score(args.ds, args.record, args.force, tuple(args.accept)))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ds", required=True, help="the day, YYYY-MM-DD")
    parser.add_argument("--record", type=Path, required=True, help="the run's record, written by `plan`")
    parser.add_argument("--force", action="store_true", help="score again what is committed already")
    parser.add_argument("--accept", action="append", default=[], help="a gate whose failure a person lets pass")
    parser.add_argument("--drain", action="store_true", help="answer deferred requests, and leave the day as it is")


def exit_code(step: str, run: Callable[[], object]) -> int:
    """0 done, 1 a gate refused the partition, 2 input, environment or settings are wrong, 3 a newer attempt owns the
    partition, 4 the day's messages are not there; others are raised."""
    from shared_model.errors import NoInput, Refused, Stale, TandemError

    try:
        run()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read us, `head` for one, has had enough. Python would complain once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Stale as stale:
        return complain(step, f"stale: {stale}", 3)
    except Refused as refused:
        return complain(step, str(refused), 1)
    except NoInput as missing:
        return complain(step, str(missing), plan.NO_INPUT)
    except (TandemError, record.RecordError) as error:
        return complain(step, str(error))
    return 0


def complain(step: str, problem: str, code: int = 2) -> int:
    print(f"batch_job {step}: {problem}", file=sys.stderr, flush=True)  # noqa: T201
    return code

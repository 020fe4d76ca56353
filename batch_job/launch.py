"""Start `score` or `drain` inside spark-submit. Standard library only until the Python is known to be the right one."""

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from batch_job import plan, record

#: What a disk says that is full, or that is not for us to write.
_DISK = {errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.ENOSPC, errno.EPERM, errno.EROFS}


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
    return exit_code("drain" if args.drain else "score", lambda: _run(args))


def _run(args: argparse.Namespace) -> None:
    # Not sooner: they need the right Python.
    from batch_job import job
    from shared_model import variables

    # Airflow starts the driver without the wrapper that would have warned.
    variables.warn()
    if args.drain:
        job.drain_only(args.ds, args.record)
    else:
        job.score(args.ds, args.record, args.force, tuple(args.accept))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ds", required=True, help="the day, YYYY-MM-DD")
    parser.add_argument("--record", type=Path, required=True, help="the run's record, written by `plan`")
    parser.add_argument("--force", action="store_true", help="score again what is committed already")
    parser.add_argument("--accept", action="append", default=[], help="a gate whose failure a person lets pass")
    parser.add_argument("--drain", action="store_true", help="answer deferred requests, and leave the day as it is")


def exit_code(step: str, run: Callable[[], object]) -> int:
    """0 done, 1 a gate refused the partition, 2 input, environment or settings are wrong, 3 a newer attempt owns the
    partition, 4 the day's messages are not there, 70 an unexpected error, with a traceback before its
    line, 75 Redis does not answer."""
    try:
        _printing_all(run)
    except BrokenPipeError:
        # Whoever read us, `head` for one, has had enough.
        return 0
    except Exception as error:  # noqa: BLE001 (a last resort: Python's own code for it is a gate's)
        code, problem = _judged(error)
        if code == plan.UNFORESEEN:
            traceback.print_exception(error)
        return complain(step, problem, code)
    return 0


def _judged(error: Exception) -> tuple[int, str]:
    """Exit code and line of a failure."""
    from shared_model.errors import NoInput, Refused, Stale, StoreUnavailable, TandemError

    codes: tuple[tuple[type[Exception], int], ...] = (
        (Stale, 3),
        (Refused, 1),
        (NoInput, plan.NO_INPUT),
        (StoreUnavailable, plan.UNAVAILABLE),
        (TandemError, 2),
        (record.RecordError, 2),
    )
    for kind, code in codes:
        if isinstance(error, kind):
            return code, f"stale: {error}" if kind is Stale else str(error)
    if isinstance(error, OSError) and error.errno in _DISK:
        return 2, f"{error.filename or 'output'}: {error.strerror}; make room, or give this user the right to it"
    what = str(error).partition("\n")[0]
    return plan.UNFORESEEN, f"unforeseen: {type(error).__name__}: {what}; the traceback above says where"


def _printing_all(run: Callable[[], object]) -> None:
    """Run it, and see that what it prints is out. Raises: OSError where it cannot be."""
    try:
        run()
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            # Python would try once more at its exit, complain, and end with a code of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise


def complain(step: str, problem: str, code: int = 2) -> int:
    print(f"batch_job {step}: {problem}", file=sys.stderr, flush=True)  # noqa: T201
    return code

"""Start `score` or `drain` inside spark-submit. Standard library only until the Python is known to be the right one."""

import errno
import os
import sys
import traceback
from collections.abc import Callable

from batch_job import run_record
from batch_job.launch import spark_submit

#: Errors of a full disk, or of one that this user may not write to.
_DISK = {errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.ENOSPC, errno.EPERM, errno.EROFS}


def exit_code(step: str, run: Callable[[], object]) -> int:
    """0 done, 1 a gate refused the partition, 2 input, environment or settings are wrong, 3 a newer attempt owns the
    partition, 4 the day's messages are not there, 70 an unexpected error, with a traceback before its
    line, 75 Redis or the store did not answer, or Spark's workers were killed: a later try may succeed."""
    try:
        _printing_all(run)
    except BrokenPipeError:
        # The reader, `head` for one, closed the pipe.
        return 0
    except Exception as error:  # noqa: BLE001 (a last resort: Python's own code for it is a gate's)
        code, problem = judged(error)
        if code == spark_submit.UNEXPECTED:
            traceback.print_exception(error)
        return complain(step, problem, code)
    return 0


def traced(step: str, run: Callable[[], object], where: str = "") -> int:
    """As `exit_code`, in a span, if the process is traced. `where`: tells two processes of a step apart."""
    # Not sooner: Airflow's environment has none of it.
    from shared_model import tracing
    from shared_model.errors import SettingError

    try:
        with tracing.program(f"batch_job {step} {where}".rstrip(), "tandem-nightly") as ended:
            code = exit_code(step, run)
            ended(code)
            return code
    except SettingError as error:
        return complain(step, str(error))


def judged(error: Exception) -> tuple[int, str]:
    """Exit code and line of a failure."""
    from shared_model.errors import NoInput, Refused, Stale, StoreUnavailable, TandemError, WorkersLost
    from shared_model.objects import is_outage

    codes: tuple[tuple[type[Exception], int], ...] = (
        (Stale, 3),
        (Refused, 1),
        (NoInput, spark_submit.NO_INPUT),
        (StoreUnavailable, spark_submit.UNAVAILABLE),
        (WorkersLost, spark_submit.UNAVAILABLE),
        (TandemError, 2),
        (run_record.RecordError, 2),
    )
    for kind, code in codes:
        if isinstance(error, kind):
            line = f"stale: {error}" if kind is Stale else str(error)
            return (spark_submit.UNAVAILABLE if code == 2 and is_outage(line) else code), line
    if isinstance(error, OSError) and error.errno in _DISK:
        return 2, f"{error.filename or 'output'}: {error.strerror}; make room, or give this user the right to it"
    what = str(error).partition("\n")[0]
    return spark_submit.UNEXPECTED, f"unexpected error: {type(error).__name__}: {what}; the traceback above says where"


def _printing_all(run: Callable[[], object]) -> None:
    """Run it and flush its output. Raises: OSError where the output cannot be written."""
    try:
        run()
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            # Python would flush again at its exit, print an error, and exit with a code of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise


def complain(step: str, problem: str, code: int = 2) -> int:
    print(f"batch_job {step}: {problem}", file=sys.stderr, flush=True)  # noqa: T201
    return code

"""Failures of Spark jobs, each in one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from shared_model.errors import EngineLost, JobError, WorkersLost

#: The cause of a failed Spark job, in its workers' tracebacks and the JVM's.
_REASON = re.compile(
    r"^(?:(?:\w+\.)?shared_model\.errors\.(?P<kind>\w+): (?P<ours>.+)"
    r"|.*\bIOException: (?P<room>No space left on device).*"
    r"|.*(?P<lost>Python worker exited unexpectedly|ExecutorLostFailure).*)$",
    re.M,
)
#: Spark's error for a file that it cannot read; the first cause after it is the reason.
_UNREADABLE = re.compile(
    r"\[(?P<kind>FAILED_READ_FILE\.\w+|PATH_NOT_FOUND)\] .*?\b(?P<file>\w[\w+.-]*:/.+?)\.\s+(SQLSTATE|[A-Z][a-z])"
)
_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*(?P<why>.+)$", re.M)
#: For want of memory, as a rule.
_LOST = "a worker was killed, as often as Spark tries a task; what it had finished is kept for the next attempt"
_STOPPED = "Spark was stopped or killed; what it had finished is kept for the next attempt"


@contextmanager
def failing_in_one_line() -> Iterator[None]:
    """Raises: JobError where a Spark job fails for a reason that a worker gave, on a file that cannot be read, or for
    want of room on a disk; WorkersLost where workers, an engine's processes or Spark itself were killed."""
    try:
        yield
    except (ConnectionRefusedError, ConnectionResetError, Py4JNetworkError) as gone:
        raise WorkersLost(_STOPPED) from gone
    except (Py4JError, PySparkException) as error:
        text = str(error)
        if found := _UNREADABLE.search(text):
            cause = _CAUSE.search(text, found.end())
            file, why = re.sub("^file:/+", "/", unquote(found["file"])), cause["why"] if cause else found["kind"]
            raise JobError(f"{file} cannot be read: {why}; restore it, or plan the run anew") from error
        if known := _REASON.search(text):
            lost = known["lost"] or known["kind"] == EngineLost.__name__
            raise (WorkersLost if lost else JobError)(known["ours"] or known["room"] or _LOST) from error
        raise


def cause_line(error: Any) -> str:
    """The line of a worker's traceback that says what went wrong."""
    lines = [line.strip(": ") for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "Exception" in line or "MISMATCH" in line]
    return (telling or lines or ["no reason given"])[-1]

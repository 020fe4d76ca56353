"""Every exception that Tandem defines.

TandemError
├── SettingError      a setting has a wrong value; names it
├── BadInput          the caller's request or a file's line is wrong; names the field
├── ReleaseError      a release is missing, damaged or refused by its gate; names the file
│   └── UnknownRelease  no such release here
├── Untrusted         a value in Redis, or its copy, is unsigned or signed by a stranger
├── OutOfMemory       a batch does not fit the device's memory; a smaller one may
├── EngineLost        a process of an engine died or hangs; it starts again
├── StoreUnavailable  Redis did not answer, or refuses writes
├── QueueFull         the deferred stream is at its bound
├── AlreadyExists     a request id was submitted before, with other content
├── Stale             a newer attempt owns this partition
└── JobError          a nightly run cannot go on: input, environment, table
    ├── Refused         a partition's contents must not be committed
    ├── WorkersLost     Spark's workers, or an engine's processes, were killed; a later try may succeed
    └── NoInput       the day's messages are not there, or not yet; names where they should be
"""


class TandemError(Exception):
    """The base class. Its text is one line that names the problem and, if possible, the remedy."""


class SettingError(TandemError):
    """A setting has a wrong value."""


class BadInput(TandemError):
    """`field` of the caller's request is wrong; `problem` says how."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class ReleaseError(TandemError):
    """A release is missing, damaged, or refused by its gate."""


class UnknownRelease(ReleaseError):
    """No release of that id is here."""


class Untrusted(TandemError):
    """A stored value is unsigned, or its signature or MAC is not by a key that counts here."""


class OutOfMemory(TandemError):
    """A batch does not fit the device's memory. A smaller one may; the engine remains usable."""


class EngineLost(TandemError):
    """A process that an engine needs died, or hangs. Its batches are lost; the engine starts it again, and waits for
    it in the next call."""


class StoreUnavailable(TandemError):
    """Redis did not answer in time, is gone, or refuses writes."""


class QueueFull(TandemError):
    """The deferred stream is at its bound; nothing was stored."""


class AlreadyExists(TandemError):
    """The request id was submitted before, with other content; nothing was stored."""


class Stale(TandemError):
    """A newer attempt owns this partition; this one must not commit."""


class JobError(TandemError):
    """A nightly run cannot go on."""


class Refused(JobError):
    """A partition's contents must not be committed; nothing became visible."""


class WorkersLost(JobError):
    """Workers were killed as often as Spark tries a task; a later try goes on with the shards that are finished."""


class NoInput(JobError):
    """The day's messages are not there, or not yet."""

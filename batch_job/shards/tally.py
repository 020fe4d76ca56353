"""Rows that tasks have scored: a small file for each, on the storage that their results go to.

Spark's accumulators reach the driver when a Python task ends, too late to show progress by. A tally is put as a whole,
so that it is read whole, and `resumable` deletes it by its name when the attempt ends. A day has far fewer tasks than
shards, and tallies have a folder of their own, so that a look at progress lists no shard. The first copy of a task
leaves a tally as it begins, and later copies see by it that the task runs again.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

from batch_job.shards.shard_files import Target, name_of, writing
from shared_model.errors import JobError
from shared_model.objects import ObjectInfo, is_url, open_objects

#: Of tasks that score a day.
TASK = "task-"

#: In the folder of the target's files.
_FOLDER = "_tallies"
#: Least seconds between two writes of a task, in a folder and behind a URL, where each is a request.
_SECONDS, _FAR_SECONDS = 1.0, 5.0


class Tally:
    """The progress of one task. `task`: its name, which all copies of it have."""

    def __init__(self, target: Target, task: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._path = f"{target.folder}/{_FOLDER}/.{target.stem(task)}-0.part"
        self._clock = clock
        self._period = _FAR_SECONDS if is_url(target.table) else _SECONDS
        self._due = clock() + self._period
        self._rows: dict[str, int] = {}

    def begin(self) -> bool:
        """Leave a count of no rows; whether no copy of the task had left one before. Raises: as `write`."""
        with writing(self._target, self._path):
            # Bytes of its own: where the answer to a put was lost, they tell it from that of a copy.
            return open_objects(self._target.table).create(self._path, f"0 {uuid.uuid4().hex}".encode())

    def count(self, part: str, rows: int) -> None:
        """Record the scored rows of a part, such as a shard. Most calls write nothing. Raises: as `write`."""
        self._rows[part] = rows
        if self._clock() >= self._due:
            self.write()

    def write(self) -> None:
        """Raises: JobError where the disk is full."""
        with writing(self._target, self._path):
            open_objects(self._target.table).put(self._path, str(sum(self._rows.values())).encode())
        self._due = self._clock() + self._period


class RowsDone:
    """Rows that tasks of an attempt have scored so far. `prefix`: of their names. A tally is read again once it has
    changed."""

    def __init__(self, target: Target, prefix: str = TASK) -> None:
        self._target, self._prefix = target, prefix
        self._read: dict[str, tuple[ObjectInfo, int]] = {}
        self._last = 0

    def __call__(self) -> int:
        # Progress that cannot be read is no reason to end the work: tasks meet the same storage, and say so.
        with suppress(OSError, JobError):
            for found in _tallies(self._target, self._prefix):
                if self._read.get(found.path, (None, 0))[0] != found:
                    rows = open_objects(self._target.table).get(found.path).split()[0]
                    self._read[found.path] = found, int(rows)
            self._last = sum(rows for _, rows in self._read.values())
        return self._last


def remove(target: Target, prefix: str) -> None:
    """Delete the counts of tasks that leave no file."""
    with writing(target, target.folder):
        open_objects(target.table).delete(*(found.path for found in _tallies(target, prefix)))


def _tallies(target: Target, prefix: str) -> Iterator[ObjectInfo]:
    # A name begins with a dot: its parts are the fingerprint, the task, the token and the driver.
    begin, end = f".{target.fingerprint}.{prefix}", f".{target.token}.{target.driver}-0.part"
    with writing(target, target.folder):
        for found in open_objects(target.table).list(f"{target.folder}/{_FOLDER}"):
            if (name := name_of(found.path)).startswith(begin) and name.endswith(end):
                yield found

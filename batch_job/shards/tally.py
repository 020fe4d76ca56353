"""Rows that running tasks have scored: a small file for each, on the storage that their results go to.

Spark's accumulators reach the driver when a Python task ends, too late to show progress by. A tally is renamed into
place, so that it is read whole, and `resumable` deletes it by its name when the attempt ends.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from batch_job.shards.shard_files import FileReport, Target, in_folder, name_of, own_sidecars, shard_of, writing
from shared_model.errors import JobError
from shared_model.objects import is_url, open_objects

#: Least seconds between two writes of a task, in a folder and behind a URL, where each is a request.
_SECONDS, _FAR_SECONDS = 1.0, 5.0


class Tally:
    """The progress of one task with the shards it has begun."""

    def __init__(self, target: Target, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._period = _FAR_SECONDS if is_url(target.table) else _SECONDS
        self._due = clock() + self._period

    def write(self, shard: str, rows: int, last: bool = False) -> None:
        """Record the scored rows of a shard. Most calls write nothing; the last one does.

        Raises: JobError where the disk is full.
        """
        if self._clock() < self._due and not last:
            return
        path = _path(self._target, shard)
        with writing(self._target, path):
            open_objects(self._target.table).put(path, str(rows).encode())
        self._due = self._clock() + self._period

    def end(self, shard: str) -> None:
        """Delete the tally of a finished shard."""
        _remove(self._target, _path(self._target, shard))


def read(target: Target, prefix: str = "") -> dict[str, int]:
    """Shard → rows scored, of all tasks of an attempt. `prefix`: of their names."""
    files, counts = open_objects(target.table), dict[str, int]()
    for path in _paths(target, prefix):
        # The finished shard may have replaced it.
        with suppress(FileNotFoundError):
            counts[shard_of(path.replace("/.", "/"))] = int(files.get(path))
    return counts


def remove(target: Target, prefix: str) -> None:
    """Delete the counts of tasks that leave no file."""
    for path in _paths(target, prefix):
        _remove(target, path)


class RowsDone:
    """Rows that an attempt has scored so far, those of running shards too. A finished shard is read once."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._finished: dict[str, tuple[str, int]] = {}

        self._last = 0

    def __call__(self) -> int:
        # Progress that cannot be read is no reason to end the work: tasks meet the same storage, and say so.
        with suppress(OSError, JobError):
            self._last = self._count()
        return self._last

    def _count(self) -> int:
        # First: a shard that is finished meanwhile is then found finished, and never missed.
        running = read(self._target)
        files = open_objects(self._target.table)
        for note in own_sidecars(self._target):
            if note not in self._finished:
                self._finished[note] = shard_of(note), FileReport.from_json(files.get(note).decode()).judged
        return sum({**running, **dict(self._finished.values())}.values())


def _paths(target: Target, prefix: str) -> list[str]:
    # A name begins with a dot: its parts are the fingerprint, the shard, the token and the driver.
    begin, end = f".{target.fingerprint}.{prefix}", f".{target.token}.{target.driver}-0.part"
    names = ((found.path, name_of(found.path)) for found in in_folder(target))
    return [path for path, name in names if name.startswith(begin) and name.endswith(end)]


def _path(target: Target, shard: str) -> str:
    return f"{target.folder}/.{target.stem(shard)}-0.part"


def _remove(target: Target, path: str) -> None:
    with writing(target, path):
        open_objects(target.table).delete(path)

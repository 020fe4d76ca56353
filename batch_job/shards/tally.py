"""Rows that running tasks have scored: a small file for each, on the storage that their results go to.

Spark's accumulators reach the driver when a Python task ends, too late to show progress by. A tally is renamed into
place, so that it is read whole, and `resumable` deletes it by its name when the attempt ends.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from batch_job.shards.shard_files import FileReport, Target, own_sidecars, shard_of, writing
from shared_model.storage import atomic_write

#: Least seconds between two writes of a task.
_SECONDS = 1.0


class Tally:
    """The progress of one task with the shards it has begun."""

    def __init__(self, target: Target, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._due = clock() + _SECONDS

    def write(self, shard: str, rows: int, last: bool = False) -> None:
        """Record the scored rows of a shard. Most calls write nothing; the last one does.

        Raises: JobError where the disk is full.
        """
        if self._clock() < self._due and not last:
            return
        path = _path(self._target, shard)
        with writing(path):
            atomic_write(path, str(rows).encode())
        self._due = self._clock() + _SECONDS

    def end(self, shard: str) -> None:
        """Delete the tally of a finished shard."""
        _path(self._target, shard).unlink(missing_ok=True)


def read(target: Target, shards: str = "*") -> dict[str, int]:
    """Shard → rows scored, of all tasks of an attempt. `shards`: a pattern of their names."""
    counts: dict[str, int] = {}
    for path in _paths(target, shards):
        # The finished shard may have replaced it.
        with suppress(FileNotFoundError):
            counts[path.name.split(".")[2]] = int(path.read_text())
    return counts


def remove(target: Target, shards: str) -> None:
    """Delete the counts of tasks that leave no file."""
    for path in _paths(target, shards):
        path.unlink(missing_ok=True)


def _paths(target: Target, shards: str) -> Iterator[Path]:
    return Path(target.table, target.folder).glob(_path(target, shards).name)


def _path(target: Target, shard: str) -> Path:
    return Path(target.table, target.folder, f".{target.stem(shard)}-0.part")


def rows_done(target: Target) -> int:
    """Rows that an attempt has scored so far, those of running shards too."""
    # First: a shard that is finished meanwhile is then found finished, and never missed.
    running = read(target)
    finished = {shard_of(note): FileReport.from_json(note.read_text()).judged for note in own_sidecars(target)}
    return sum({**running, **finished}.values())

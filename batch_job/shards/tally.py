"""Rows that running tasks have scored: a small file for each, on the storage that their results go to.

Spark's accumulators reach the driver when a Python task ends, too late to show progress by. A tally is renamed into
place, so that it is read whole, and its name is one that `leftovers` deletes when the attempt ends.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from batch_job.shards.shard_files import FileReport, Target, own_sidecars, unit_of
from shared_model.errors import JobError

#: Least seconds between two writes of a task.
_SECONDS = 1.0


class Tally:
    """How far one task is with what it has begun."""

    def __init__(self, target: Target, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._due = clock() + _SECONDS

    def tell(self, unit: str, rows: int, last: bool = False) -> None:
        """So many rows of a unit are scored. Most calls write nothing; the last one does. Raises: JobError where the
        disk is full."""
        if self._clock() < self._due and not last:
            return
        path = _path(self._target, unit)
        temporary = path.with_name(f".{self._target.stem(unit)}-{uuid.uuid4().hex}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(str(rows))
            temporary.replace(path)
        except OSError as error:
            raise JobError(f"{path} could not be written: {error}") from error
        self._due = self._clock() + _SECONDS

    def end(self, unit: str) -> None:
        """The unit itself is there."""
        _path(self._target, unit).unlink(missing_ok=True)


def read(target: Target, units: str = "*") -> dict[str, int]:
    """Unit → rows scored, of all tasks of an attempt. `units`: a pattern of their names."""
    return dict(_read(target, units))


def remove(target: Target, units: str) -> None:
    """What tasks said of units that leave no file."""
    for path in _paths(target, units):
        path.unlink(missing_ok=True)


def _read(target: Target, units: str) -> Iterator[tuple[str, int]]:
    for path in _paths(target, units):
        # The unit itself may be there by now.
        with suppress(FileNotFoundError):
            yield path.name.split(".")[2], int(path.read_text())


def _paths(target: Target, units: str) -> Iterator[Path]:
    return Path(target.table, target.folder).glob(_path(target, units).name)


def _path(target: Target, unit: str) -> Path:
    return Path(target.table, target.folder, f".{target.stem(unit)}-0.part")


def rows_done(target: Target) -> int:
    """Rows that an attempt has scored so far, those of running units too."""
    # First: a unit that is finished meanwhile is then found finished, and never missed.
    running = read(target)
    finished = {unit_of(note): FileReport.from_json(note.read_text()).judged for note in own_sidecars(target)}
    return sum({**running, **finished}.values())

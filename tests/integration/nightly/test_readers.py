"""Readers look at the day again and again while a night goes on: each sees the whole old day or the whole new one."""

import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable

from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport
from batch_job.steps import score
from batch_job.tables import table
from tests.batch_job.conftest import DAY
from tests.integration.nightly.conftest import LINES, House, Rows, check_complete, old_rows


class Reader:
    """Looks at the day all the time, in a thread of its own."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._over = threading.Event()
        self._looked = threading.Condition()
        self.looks: list[Rows] = []

    def look(self) -> None:
        seen = self._house.rows()
        with self._looked:
            self.looks.append(seen)
            self._looked.notify_all()

    @property
    def days(self) -> list[Rows]:
        """The days seen, one entry a change."""
        return [day for day, _ in groupby(self.looks)]

    def wait_for_a_look(self) -> None:
        """That begins after this call."""
        with self._looked:
            # One may have begun before.
            enough = len(self.looks) + 2
            assert self._looked.wait_for(lambda: len(self.looks) >= enough, 30)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """The first look comes before what is done in here, the last after it."""
        self.look()
        with ThreadPoolExecutor(1) as pool:
            looked = pool.submit(self._look_on)
            try:
                yield
            finally:
                self._over.set()
        looked.result()
        self.look()

    def _look_on(self) -> None:
        while not self._over.wait(0.01):
            self.look()


def check_days(reader: Reader) -> None:
    assert len(reader.looks) > 50
    old, new = reader.days
    assert old == old_rows()
    assert len(new) == new.total() == len(LINES)


def test_every_look_during_a_night_is_at_a_whole_day(house: House, in_this_spark: None) -> None:
    reader = Reader(house)
    with reader.looking():
        run = score.score(DAY, house.path)
    check_days(reader)
    check_complete(house, run)


@pytest.mark.proof
@pytest.mark.parametrize("phase", ["half the shards", "checked", "committed"])
def test_so_it_is_when_the_driver_is_killed_and_the_day_scored_again(
    house: House, in_this_spark: None, phase: str
) -> None:
    reader = Reader(house)
    with reader.looking():
        assert house.night(phase).returncode == -signal.SIGKILL
        score.score(DAY, house.path)
    check_days(reader)


@pytest.mark.proof
def test_control_files_committed_one_by_one_are_seen_one_by_one(
    house: House, in_this_spark: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, replace_partition = Reader(house), table.replace_partition

    def one_by_one(folder: Path, ds: str, files: Sequence[FileReport], *arguments: Any) -> int:
        replace_partition(folder, ds, files[:1], *arguments)
        for file in files[1:]:
            reader.wait_for_a_look()
            actions = table._actions({"ds": ds, "source": schemas.ARCHIVE}, [file])
            DeltaTable(str(folder)).create_write_transaction(
                actions, "append", table.SCORES, ["ds", "source"], commit_properties=CommitProperties()
            )
        return house.version

    monkeypatch.setattr(table, "replace_partition", one_by_one)
    with reader.looking():
        score.score(DAY, house.path)
    old, *parts, new = reader.days
    assert (old, new.total()) == (old_rows(), len(LINES))
    assert all(0 < part.total() < len(LINES) for part in parts)
    assert parts

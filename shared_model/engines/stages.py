"""The stages of a model that is cut: a call walks through them, and each runs one call at a time, on its own cores."""

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from shared_model.errors import ReleaseError

#: How far from its aim a cut may be for a better price, in parts of a stage.
_TOLERANCE = 0.25

Built = TypeVar("Built")

#: The cores of each stage.
Groups = Sequence[Sequence[int]]


class Stages:
    """As many calls may walk as there are stages; each holds one stage at a time. Stages compute on the calling thread,
    which is bound to the cores of the stage that it is in.

    Helper threads of a wider stage keep the cores of the process: frameworks share them between models.
    """

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._free = [threading.Lock() for _ in groups]

    def on_cores(self, stage: int, build: Callable[[], Built]) -> Built:
        """What `build` makes on a thread that has only the cores of a stage, as have those that it starts: memory lies
        near the cores that write it first."""
        bind = partial(os.sched_setaffinity, 0, self._groups[stage])
        with ThreadPoolExecutor(1, initializer=bind) as thread:
            return thread.submit(build).result()

    @contextmanager
    def walk(self) -> Iterator["Walk"]:
        before = os.sched_getaffinity(0)
        walk = Walk(self._groups, self._free)
        try:
            yield walk
        finally:
            walk.leave()
            os.sched_setaffinity(0, before)


class Walk:
    """One call on its way. Of one thread."""

    def __init__(self, groups: Groups, free: Sequence[threading.Lock]) -> None:
        self._groups = groups
        self._free = free
        self._at: int | None = None

    def enter(self, stage: int) -> None:
        """Leave the stage before, which another call may then enter, and wait for this one."""
        self.leave()
        self._free[stage].acquire()
        self._at = stage
        os.sched_setaffinity(0, self._groups[stage])

    def leave(self) -> None:
        if self._at is not None:
            self._free[self._at].release()
            self._at = None


def core_groups(cores: Sequence[int], stages: int) -> list[list[int]]:
    """Neighbours, as evenly as they divide; of one NUMA node, as far as nodes divide, if cores come in their order.
    Raises: ReleaseError where there are fewer cores than stages."""
    if len(cores) < stages:
        raise ReleaseError(f"{stages} stages need as many cores, and {len(cores)} are here")
    bounds = [len(cores) * it // stages for it in range(stages + 1)]
    return [list(cores[start:end]) for start, end in itertools.pairwise(bounds)]


def balanced(shares: Sequence[float], stages: int, price: Callable[[int], int] = lambda place: 0) -> list[int]:
    """The first place of each stage but the first one, so that stages cost about the same. `shares`: of the whole cost,
    what is behind when each place is done, ascending; at least as many as stages. `price`: of a cut in front of a
    place; the cheapest near the aim is taken."""
    found, first = list[int](), 1
    for number in range(1, stages):
        aim = number / stages

        def distance(place: int, aim: float = aim) -> float:
            return abs(shares[place - 1] - aim)

        # Each later stage gets a place, too.
        places = range(first, len(shares) - (stages - number) + 1)
        near = [it for it in places if distance(it) <= _TOLERANCE / stages] or [min(places, key=distance)]
        found.append(min(near, key=lambda it: (price(it), distance(it))))
        first = found[-1] + 1
    return found

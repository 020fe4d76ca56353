"""Keeps the ranks of a tensor-parallel engine: one thread starts them, watches them, and starts them again.

Requests that are under way when a rank is lost fail; later ones wait for the new processes.
"""

import logging
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future

from shared_model.engines import rank_messages
from shared_model.engines.rank_group import RankGroup, Split
from shared_model.engines.rank_messages import Kind
from shared_model.errors import EngineLost, TandemError

#: Failed starts in a row before an engine stays lost, and the pause after the first.
_MOST_FAILED_STARTS, _PAUSE_SECONDS = 3, 0.5

log = logging.getLogger(__name__)


class Ranks:
    """Raises: EngineLost, OutOfMemory if they do not start."""

    def __init__(self, split: Split, files: Mapping[str, bytes]) -> None:
        self._split = split
        # In memory, once for all ranks and for those that follow them.
        self._files = {name: _in_memory(name, content) for name, content in files.items()}
        self._state = threading.Condition()
        self._group: RankGroup | None = None
        self._over: TandemError | None = None
        self._closing = threading.Event()
        # The kernel kills the ranks when this thread ends.
        self._keeper = threading.Thread(target=self._keep, daemon=True, name="ranks")
        self._keeper.start()
        try:
            self.facts = self._ready().facts
        except TandemError:
            self.close()
            raise

    @property
    def processes(self) -> list[int]:
        """Their ids, the first rank's first. Waits while they start."""
        return self._ready().processes

    def ask(self, kind: Kind, content: bytes = b"") -> "Future[list[bytes]]":
        """Send a request to all ranks, from any thread; waits while they start. The future has the answer of each, or
        EngineLost, or OutOfMemory. Raises: one of these where they do not start any more."""
        return self._ready().ask(rank_messages.message(kind, content))

    def close(self) -> None:
        if not self._closing.is_set():
            self._closing.set()
            self._keeper.join()
            for descriptor in self._files.values():
                os.close(descriptor)

    def _ready(self) -> RankGroup:
        with self._state:
            self._state.wait_for(lambda: self._group or self._over)
            if self._group:
                return self._group
            raise self._over or EngineLost("the engine is closed")

    def _keep(self) -> None:
        failures, ever = 0, False
        while not self._closing.is_set():
            group = RankGroup(self._split, self._files)
            problem = group.run(self._closing, self._publish)
            served = self._group is group
            self._publish(None)
            group.end(problem)
            failures, ever = 0 if served else failures + 1, ever or served
            # A first start that fails would fail again.
            if failures >= _MOST_FAILED_STARTS or not ever:
                self._publish(None, problem)
                return
            if not self._closing.is_set():
                log.error("%s; all ranks start again", problem)
                self._closing.wait(_PAUSE_SECONDS * failures)
        self._publish(None, EngineLost("the engine is closed"))

    def _publish(self, group: RankGroup | None, over: TandemError | None = None) -> None:
        with self._state:
            self._group, self._over = group, over
            self._state.notify_all()


def _in_memory(name: str, content: bytes) -> int:
    descriptor = os.memfd_create(name)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    return descriptor

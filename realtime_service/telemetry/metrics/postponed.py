"""A registry whose metrics are updated many at a time."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import RestrictedRegistry

#: Updates that wait, at most: together they take a fraction of a millisecond.
_MOST: Final = 256


class PostponedUpdates(CollectorRegistry):
    """Updates wait for the next scrape, or for others. A batch leaves nothing of a metric in a core's caches, so the
    first update after it takes ten times as long as the next."""

    def __init__(self) -> None:
        super().__init__()
        self._updates = deque[tuple[Callable[..., None], tuple[Any, ...]]]()
        # Held by the thread that makes updates: a reader waits for those that another thread is at.
        self._making = threading.Lock()

    def later(self, update: Callable[..., None], *arguments: Any) -> None:
        """Call `update` before anybody reads a metric, on any thread."""
        self._updates.append((update, arguments))
        if len(self._updates) >= _MOST:
            self.update()

    def update(self) -> None:
        """Make all updates now. Safe to call from several threads."""
        with self._making:
            while self._updates:
                update, arguments = self._updates.popleft()
                update(*arguments)

    def collect(self) -> Iterable[Metric]:
        self.update()
        return super().collect()

    def restricted_registry(self, names: Iterable[str]) -> RestrictedRegistry:
        self.update()
        return super().restricted_registry(names)

"""Threads that work for as long as a context lasts."""

import threading
from collections.abc import Callable, Iterable
from typing import Self


class Workers:
    """Each of `_works` runs in a thread of its own, and is to end soon after `_over` is set, for which the context's
    end waits."""

    _over: threading.Event
    _threads: list[threading.Thread]

    def _works(self) -> Iterable[Callable[[], object]]:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work) for work in self._works()]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

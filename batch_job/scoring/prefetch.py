"""Run an iterator ahead of its consumer, in a thread of its own."""

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class _Ended:
    """The last thing a producer says; `error` is what stopped it, if anything did."""

    error: BaseException | None = None


def ahead(items: Iterable[T], depth: int) -> Iterator[T]:
    """The same items in the same order, up to `depth` of them made before they are asked for.

    An exception of `items` is raised here, after the items before it. A consumer that stops early stops the thread.
    """
    made: queue.Queue[Any] = queue.Queue(depth)
    stopped = threading.Event()
    threading.Thread(target=_produce, args=(items, made, stopped), name="prefetch", daemon=True).start()
    try:
        while not isinstance(item := made.get(), _Ended):
            yield item
        if item.error:
            raise item.error
    finally:
        stopped.set()


def _produce(items: Iterable[Any], made: "queue.Queue[Any]", stopped: threading.Event) -> None:
    try:
        for item in items:
            if not _put(made, item, stopped):
                return
        _put(made, _Ended(), stopped)
    except BaseException as error:  # noqa: BLE001 (whatever it is, it is the consumer's to handle)
        _put(made, _Ended(error), stopped)


def _put(made: "queue.Queue[Any]", item: object, stopped: threading.Event) -> bool:
    """False when the consumer has gone."""
    while not stopped.is_set():
        try:
            made.put(item, timeout=_POLL_SECONDS)
            return True
        except queue.Full:
            continue
    return False

"""Bounds the calls, and the bytes of requests, that a process holds at once: in all and of each caller. No I/O."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from realtime_service.errors import Overloaded

#: Bytes end with their requests, so that a full budget has room again after a typical request.
RETRY_SECONDS = 0.1


class Inflight:
    """A call, and the bytes of a request, are held from its arrival until it is answered or refused."""

    def __init__(self, unit: str, most: int, most_of_caller: int, refused: Callable[[], None] = lambda: None) -> None:
        """`unit`: "bytes" or "calls", for messages. `refused`: called at each refusal."""
        self._unit = unit
        self._refused = refused
        self._most = most
        self._most_of_caller = most_of_caller
        self._held = 0
        self._of_caller: Counter[str] = Counter()

    @property
    def held(self) -> int:
        return self._held

    @contextmanager
    def holding(self, caller: str | None, size: int) -> Iterator[None]:
        """`caller`: None for a request that another replica forwarded, which held its caller's bytes there.

        A request is taken, whatever its size, where nothing is held. Raises: Overloaded.
        """
        own = self._of_caller[caller] if caller is not None else 0
        if own and own + size > self._most_of_caller:
            self._refused()
            raise Overloaded(f"this caller's requests under way hold {own} {self._unit}", RETRY_SECONDS)
        if self._held and self._held + size > self._most:
            self._refused()
            raise Overloaded(f"requests under way hold {self._held} {self._unit}", RETRY_SECONDS)
        self._add(caller, size)
        try:
            yield
        finally:
            self._add(caller, -size)

    def _add(self, caller: str | None, size: int) -> None:
        self._held += size
        if caller is not None:
            self._of_caller[caller] += size
            if not self._of_caller[caller]:
                del self._of_caller[caller]

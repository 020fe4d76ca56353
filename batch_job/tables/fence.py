"""The fence: of several attempts at one partition, only the latest may commit.

Every attempt takes a larger token. The table refuses a token that is not larger than the committed one
(`batch_job.tables.table`), which holds without Redis; asking Redis as well stops an attempt as soon as it is
superseded.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import redis
import redis.asyncio

from shared_model.errors import Stale, StoreUnavailable
from shared_model.redis_store import clients, keys

_TAKE = (Path(__file__).parent / "lua" / "take_token.lua").read_text()

#: Seconds between two looks at the token; a superseded attempt must be gone within 5 s.
WATCH_SECONDS = 1.0


def connect(url: str) -> "redis.Redis":
    """A client that gives up soon."""
    return clients.connect(url, timeout=2.0, connect_timeout=2.0)


def connect_asyncio(url: str) -> "redis.asyncio.Redis":
    """The same for asyncio: a claim that is sent twice would hold work that this process does not know of."""
    return clients.connect_asyncio(url, timeout=5.0, connect_timeout=2.0)


class Fence:
    """One attempt's token, and whether it is still the latest."""

    def __init__(self, client: "redis.Redis", ds: str, token: int, model: str = "") -> None:
        """`model`: that scores; "" is the default one."""
        self._redis = client
        self.ds = ds
        self.token = token
        self.model = model

    @classmethod
    def take(cls, client: "redis.Redis", ds: str, floor: int, model: str = "") -> "Fence":
        """Start an attempt, superseding all others with the same model. Raises: StoreUnavailable."""
        try:
            token = client.register_script(_TAKE)(keys=[keys.partition_token(ds, model)], args=[floor])
        except redis.RedisError as error:
            raise StoreUnavailable(f"no token for ds={ds}: Redis did not answer: {error}") from error
        return cls(client, ds, int(token), model)

    def check(self) -> None:
        """Raises: Stale when a newer attempt is known of. Redis being away is no verdict."""
        latest = latest_token(self._redis, self.ds, self.model)
        if latest is not None and latest > self.token:
            raise Stale(f"attempt {latest} at ds={self.ds} has begun, this is attempt {self.token}; nothing committed")


def latest_token(client: "redis.Redis", ds: str, model: str = "") -> int | None:
    """The token taken last; None when none was, or Redis does not answer."""
    try:
        value = client.get(keys.partition_token(ds, model))
    except redis.RedisError:
        return None
    return int(value) if value else None


class Watch:
    """Checks a fence in the background for as long as this context lasts, and calls `stop` once it is superseded.

    `stop` is called again at every look: work may begin between two steps that the call before could not reach.
    """

    def __init__(self, fence: Fence, stop: Callable[[], None], seconds: float = WATCH_SECONDS) -> None:
        self._fence = fence
        self._stop = stop
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fence-watch", daemon=True)
        self.superseded: Stale | None = None

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        if self.superseded and isinstance(error, Exception):
            # Whatever broke, broke because its work was stopped.
            raise self.superseded from None

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            try:
                self._fence.check()
            except Stale as stale:
                self.superseded = stale
                self._stop()

"""Connections to Redis, from URLs that may also name Sentinels.

Clients never retry: the library's default retries stall a caller for a minute if the server is stopped, and may repeat
a write. A client of a Sentinel asks for the master on every connect, so it follows a failover.
"""

from typing import Any
from urllib.parse import unquote

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

_SENTINEL = "redis+sentinel"
#: The accepted forms of a URL, for error messages.
EXPECTED = (
    "redis://HOST:PORT, rediss://HOST:PORT, unix://PATH or redis+sentinel://HOST:PORT,HOST:PORT/SERVICE, where the "
    "hosts are Sentinels"
)


def connect(url: str, timeout: float, connect_timeout: float) -> "redis.Redis":
    """A client for threads. Times are in seconds; the outcome of a call that took longer is unknown.

    Raises: ValueError for an invalid URL.
    """
    waits = _waits(timeout, connect_timeout)
    retry = Retry(NoBackoff(), 0)
    if not _names_sentinel(url):
        return redis.Redis.from_url(url, **waits, retry=retry)
    sentinels, service, options = _read(url)
    # To ask who is the master is a part of connecting.
    asking = _waits(connect_timeout, connect_timeout)
    found = redis.sentinel.Sentinel(sentinels, sentinel_kwargs={**asking, "retry": retry})
    return found.master_for(service, **waits, **options, retry=retry)


def connect_asyncio(url: str, timeout: float, connect_timeout: float) -> "redis.asyncio.Redis":
    """As `connect`, for an event loop."""
    waits = _waits(timeout, connect_timeout)
    retry = AsyncRetry(NoBackoff(), 0)
    if not _names_sentinel(url):
        return redis.asyncio.Redis.from_url(url, **waits, retry=retry)
    sentinels, service, options = _read(url)
    # To ask who is the master is a part of connecting.
    asking = _waits(connect_timeout, connect_timeout)
    found = redis.asyncio.sentinel.Sentinel(sentinels, sentinel_kwargs={**asking, "retry": retry})
    return found.master_for(service, redis_class=_Following, **waits, **options, retry=retry)


def check(url: str) -> None:
    """Raises: ValueError if `url` has none of the EXPECTED forms. Its text may quote a password."""
    if _names_sentinel(url):
        _read(url)
    else:
        redis.ConnectionPool.from_url(url)


class _Following(redis.asyncio.Redis):  # type: ignore[misc]  # the library has no types
    """A client of a Sentinel's master; closing it also closes its connections to the Sentinels."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        await self.connection_pool.sentinel_manager.aclose()


def _waits(timeout: float, connect_timeout: float) -> dict[str, Any]:
    return {"socket_timeout": timeout, "socket_connect_timeout": connect_timeout}


def _names_sentinel(url: str) -> bool:
    return url.startswith(f"{_SENTINEL}://")


def _read(url: str) -> tuple[list[tuple[str, int]], str, dict[str, Any]]:
    """The Sentinels, the service that they watch, and the options of a connection to its master: user and password are
    those of Redis. Raises: ValueError."""
    # The library's own parser accepts neither several hosts nor an IPv6 address among them.
    place, _, path = url.removeprefix(f"{_SENTINEL}://").partition("?")[0].partition("/")
    credentials, _, hosts = place.rpartition("@")
    service, _, database = path.strip("/").partition("/")
    if not service:
        raise ValueError("no service is named")
    sentinels = [_address(host) for host in hosts.split(",")]
    user, _, password = credentials.partition(":")
    options: dict[str, Any] = {"username": unquote(user) or None, "password": unquote(password) or None}
    return sentinels, unquote(service), {**options, "db": int(database or 0)}


def _address(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":")
    if not name:
        raise ValueError(f"{host!r} is not HOST:PORT")
    return name.strip("[]"), int(port)

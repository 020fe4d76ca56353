"""Connections to Redis, from URLs that may also name Sentinels.

Clients never retry: the library's default retries stall a caller for a minute if the server is stopped, and may repeat
a write. A client of a Sentinel asks for the master on every connect, so it follows a failover.

`rediss://` and `rediss+sentinel://` mean TLS, the latter to Sentinels and master alike. The URL's query may name files:
`ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`. They are read for each connection, so that renewals need no restart.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from shared_model.addresses import is_loopback
from shared_model.storage import without_user

_SENTINEL = re.compile(r"redis(s?)\+sentinel://")
#: The accepted forms of a URL, for error messages.
EXPECTED = (
    "redis://HOST:PORT, rediss://HOST:PORT, unix://PATH or redis+sentinel://HOST:PORT,HOST:PORT/SERVICE (with TLS "
    "rediss+sentinel://), where the hosts are Sentinels"
)


@dataclass(frozen=True)
class SentinelUrl:
    """The parts of a URL of Sentinels: their addresses, the service that they watch, the options of a connection to its
    master, and of one to a Sentinel. User and password before the hosts are those of Redis; `sentinel_username` and
    `sentinel_password` in the query are those of the Sentinels."""

    sentinels: list[tuple[str, int]]
    service: str
    master: dict[str, Any]
    asking: dict[str, Any]


def connect(url: str, timeout: float, connect_timeout: float) -> "redis.Redis":
    """A client for threads. Times are in seconds; the outcome of a call that took longer is unknown.

    Raises: ValueError for an invalid URL.
    """
    waits = _waits(timeout, connect_timeout)
    retry = Retry(NoBackoff(), 0)
    if not _names_sentinel(url):
        return redis.Redis.from_url(url, **waits, retry=retry)
    read = _read(url)
    # To ask who is the master is a part of connecting.
    asking = {**_waits(connect_timeout, connect_timeout), **read.asking, "retry": retry}
    found = redis.sentinel.Sentinel(read.sentinels, sentinel_kwargs=asking)
    return found.master_for(read.service, **waits, **read.master, retry=retry)


def connect_asyncio(
    url: str, timeout: float, connect_timeout: float, patience: float | None = None
) -> "redis.asyncio.Redis":
    """As `connect`, for an event loop. `patience`: seconds that a command waits for a connection where all are in use,
    by default `timeout`; then it raises MaxConnectionsError."""
    client = _client(url, timeout, connect_timeout)
    client.free.seconds = timeout if patience is None else patience
    return client


def _client(url: str, timeout: float, connect_timeout: float) -> "_Client":
    waits = _waits(timeout, connect_timeout)
    retry = AsyncRetry(NoBackoff(), 0)
    if not _names_sentinel(url):
        plain: _Client = _Client.from_url(url, **waits, retry=retry)
        return plain
    read = _read(url)
    # To ask who is the master is a part of connecting.
    asking = {**_waits(connect_timeout, connect_timeout), **read.asking, "retry": retry}
    found = redis.asyncio.sentinel.Sentinel(read.sentinels, sentinel_kwargs=asking)
    following: _Client = found.master_for(read.service, redis_class=_Following, **waits, **read.master, retry=retry)
    return following


def check(url: str) -> None:
    """Raises: ValueError if `url` has none of the EXPECTED forms. Its text may quote a password."""
    if _names_sentinel(url):
        _read(url)
    else:
        redis.ConnectionPool.from_url(url)


def has_tls(url: str) -> bool:
    return url.startswith("rediss")


def stays_here(url: str) -> bool:
    """Whether a valid URL leads to this host alone."""
    if _names_sentinel(url):
        return all(is_loopback(host) for host, _ in _read(url).sentinels)
    return url.startswith("unix:") or is_loopback(urlsplit(url).hostname or "localhost")


def certificate_end(url: str, timeout: float) -> float:
    """When the certificate that Redis shows ends, in seconds since 1970; 0 where it shows none, or the URL does not let
    it be verified. Raises: redis.RedisError, OSError."""
    if not has_tls(url):
        return 0.0
    with connect(url, timeout, timeout) as client:
        connection = client.connection_pool.get_connection()
        try:
            # The library offers no other way to it.
            shown_by_redis = connection._sock.getpeercert()
        finally:
            client.connection_pool.release(connection)
    return float(ssl.cert_time_to_seconds(shown_by_redis["notAfter"])) if shown_by_redis else 0.0


def shown(url: str) -> str:
    """A URL for people: without passwords, which the query may hold, too."""
    return without_user(url).partition("?")[0]


def with_query(url: str, values: Mapping[str, str]) -> str:
    """The URL with these values in its query, where it has none of that name, and where they are not empty."""
    place, _, query = url.partition("?")
    there = parse_qs(query)
    added = urlencode({name: value for name, value in values.items() if value and name not in there})
    return "?".join(filter(None, (place, "&".join(filter(None, (query, added))))))


class _Client(redis.asyncio.Redis):  # type: ignore[misc]  # the library has no types
    """Waits for a free connection, and once for both to send a command and to read its reply. The library has a time
    limit for each, and for the first it makes a task, which takes two more turns of the event loop (`asyncio.wait_for`
    before Python 3.12)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.free = _FreeConnections(self.connection_pool.max_connections)

    async def execute_command(self, *arguments: Any, **options: Any) -> Any:
        async with self.free:
            return await super().execute_command(*arguments, **options)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "_Pipeline":
        pipeline = _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        pipeline.free = self.free
        return pipeline

    async def _send_command_parse_response(self, conn: Any, name: Any, *arguments: Any, **options: Any) -> Any:
        # No other command has the connection meanwhile.
        seconds, conn.socket_timeout = conn.socket_timeout, None
        try:
            # At its end the library is cancelled, and closes the connection.
            async with asyncio.timeout(seconds):
                return await super()._send_command_parse_response(conn, name, *arguments, **options)
        except TimeoutError as error:
            raise redis.TimeoutError(f"no reply within {seconds:g} s") from error
        finally:
            conn.socket_timeout = seconds


class _Pipeline(redis.asyncio.client.Pipeline):  # type: ignore[misc]  # the library has no types
    """Waits for a free connection of its client, too."""

    free: "_FreeConnections"

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        async with self.free:
            replies: list[Any] = await super().execute(raise_on_error)
            return replies


class _FreeConnections:
    """The connections of a pool. Commands take them in turn, and wait at most `seconds` for one. The pool itself
    refuses a command where none is free; the library's pool that waits takes 17 µs of the event loop more for each."""

    def __init__(self, connections: int) -> None:
        self._free = asyncio.Semaphore(connections)
        self.seconds = 0.0

    async def __aenter__(self) -> None:
        if not self._free.locked():
            # At once.
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(self.seconds):
                await self._free.acquire()
        except TimeoutError as error:
            said = f"more commands at once than connections, and none was free within {self.seconds:g} s"
            raise redis.exceptions.MaxConnectionsError(said) from error

    async def __aexit__(self, *_: object) -> None:
        self._free.release()


class _Following(_Client):
    """A client of a Sentinel's master; closing it also closes its connections to the Sentinels."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        await self.connection_pool.sentinel_manager.aclose()


def _waits(timeout: float, connect_timeout: float) -> dict[str, Any]:
    return {"socket_timeout": timeout, "socket_connect_timeout": connect_timeout}


def _names_sentinel(url: str) -> bool:
    return bool(_SENTINEL.match(url))


def _read(url: str) -> SentinelUrl:
    """Raises: ValueError."""
    # The library's own parser accepts neither several hosts nor an IPv6 address among them.
    found = _SENTINEL.match(url)
    if not found:
        raise ValueError("it names no Sentinels")
    rest, _, query = url[found.end() :].partition("?")
    place, _, path = rest.partition("/")
    credentials, _, hosts = place.rpartition("@")
    service, _, database = path.strip("/").partition("/")
    if not service:
        raise ValueError("no service is named")
    user, _, password = credentials.partition(":")
    # The library's own parser knows the types of the values.
    given = redis.connection.parse_url(f"rediss://?{query}")
    tls = {"ssl": True, **{name: it for name, it in given.items() if name.startswith("ssl_")}} if found[1] else {}
    return SentinelUrl(
        [_address(host) for host in hosts.split(",")],
        unquote(service),
        {"username": unquote(user) or None, "password": unquote(password) or None, "db": int(database or 0), **tls},
        {"username": given.get("sentinel_username"), "password": given.get("sentinel_password"), **tls},
    )


def _address(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":")
    if not name:
        raise ValueError(f"{host!r} is not HOST:PORT")
    return name.strip("[]"), int(port)

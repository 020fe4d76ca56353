"""Two ways to talk to Redis. Neither retries: the library's default retries stall a caller for a minute against a
stopped server, and turn one write into several."""

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

_PATIENT_SECONDS = 1.0
_CONNECT_SECONDS = 0.05


def patient(url: str) -> "redis.asyncio.Redis":
    """For background duties and deferred requests. A time-out means that the outcome is not known."""
    return _client(url, _PATIENT_SECONDS, _PATIENT_SECONDS)


def hasty(url: str, timeout: float) -> "redis.asyncio.Redis":
    """For look-ups a caller waits for, `timeout` seconds at most.

    A connection that timed out is dropped by the library, never reused: its late reply would answer another call.
    """
    return _client(url, timeout, _CONNECT_SECONDS)


def _client(url: str, timeout: float, connect_timeout: float) -> "redis.asyncio.Redis":
    return redis.asyncio.Redis.from_url(
        url, socket_timeout=timeout, socket_connect_timeout=connect_timeout, retry=Retry(NoBackoff(), 0)
    )

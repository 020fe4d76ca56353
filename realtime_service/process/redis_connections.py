"""Two ways to talk to Redis: patiently, and hastily where a caller waits."""

import redis.asyncio

from shared_model.redis_store import clients

_DEFAULT_SECONDS = 1.0
_CONNECT_SECONDS = 0.05


def default_client(url: str) -> "redis.asyncio.Redis":
    """For background duties and deferred requests. A time-out means that the outcome is not known."""
    return clients.connect_asyncio(url, _DEFAULT_SECONDS, _DEFAULT_SECONDS)


def low_latency_client(url: str, timeout: float) -> "redis.asyncio.Redis":
    """For look-ups a caller waits for, `timeout` seconds at most.

    A connection that timed out is dropped by the library, never reused: its late reply would answer another call.
    """
    return clients.connect_asyncio(url, timeout, _CONNECT_SECONDS)

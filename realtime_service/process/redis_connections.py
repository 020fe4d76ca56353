"""The two Redis clients: the default one, and one with low timeouts for look-ups that callers wait for."""

import redis.asyncio

from shared_model.redis_store import clients

_DEFAULT_SECONDS = 1.0
_CONNECT_SECONDS = 0.05


def default_client(url: str) -> "redis.asyncio.Redis":
    """For background tasks and deferred requests. After a timeout the outcome is unknown."""
    return clients.connect_asyncio(url, _DEFAULT_SECONDS, _DEFAULT_SECONDS)


def low_latency_client(url: str, timeout: float) -> "redis.asyncio.Redis":
    """For look-ups that a caller waits for, at most `timeout` seconds, and for a free connection not at all.

    The library closes a connection that timed out: its late reply would else answer another command.
    """
    return clients.connect_asyncio(url, timeout, _CONNECT_SECONDS, patience=0.0)

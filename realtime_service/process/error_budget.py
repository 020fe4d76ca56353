"""The error budget of a deployment without Prometheus: replicas add what they have counted to hashes in Redis, one for
each day and one, by minute, for each hour. Each expires by itself."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from redis.asyncio.client import Pipeline

from realtime_service.telemetry.metrics.service_levels import LANES, Totals
from shared_model.redis_store import keys

DAYS = 28
_DAY_TTL, _HOUR_TTL = timedelta(days=DAYS + 1), timedelta(hours=3)
_MISSED, _COUNTED = "missed", "counted"

#: By lane: requests that missed, and all that count.
Counts = dict[str, tuple[float, float]]


def grown(before: Totals | None, now: Totals) -> Counter[str]:
    """By the name of a field, what came since `before`; all without it."""
    found = Counter[str]()
    for lane in LANES:
        since = before.missed(lane) if before else (0.0, 0.0)
        for name, old, new in zip((_MISSED, _COUNTED), since, now.missed(lane), strict=True):
            found[f"{lane}:{name}"] += int(new - old)
    return +found


def add(pipe: "Pipeline", counts: Mapping[str, int], wall: float) -> None:
    """Queue the commands that count at this moment."""
    at = datetime.fromtimestamp(wall, UTC)
    day, hour = keys.error_budget(f"{at:%Y-%m-%d}"), keys.error_budget(f"{at:%Y-%m-%dT%H}")
    for field, count in counts.items():
        pipe.hincrby(day, field, count)
        pipe.hincrby(hour, f"{at:%M}:{field}", count)
    if counts:
        pipe.expire(day, _DAY_TTL)
        pipe.expire(hour, _HOUR_TTL)


def periods(wall: float) -> tuple[list[str], list[str]]:
    """The days and the hours of the two windows that end at this moment, the newest first."""
    at = datetime.fromtimestamp(wall, UTC)
    days = [f"{at - timedelta(days=it):%Y-%m-%d}" for it in range(DAYS)]
    return days, [f"{at - timedelta(hours=it):%Y-%m-%dT%H}" for it in range(2)]


def of_days(days: Iterable[Mapping[bytes, bytes]]) -> Counts:
    found = Counter[str]()
    for read in days:
        found.update({field.decode(): int(count) for field, count in read.items()})
    return _by_lane(found)


def of_hour(hours: Iterable[Mapping[bytes, bytes]], wall: float) -> Counts:
    """Of the last 60 minutes; `hours`: this one and the one before."""
    minute, found = datetime.fromtimestamp(wall, UTC).minute, Counter[str]()
    for age, read in enumerate(hours):
        for field, count in read.items():
            at, _, name = field.decode().partition(":")
            if (int(at) <= minute) is (age == 0):
                found[name] += int(count)
    return _by_lane(found)


def _by_lane(found: Mapping[str, int]) -> Counts:
    return {lane: (found.get(f"{lane}:{_MISSED}", 0), found.get(f"{lane}:{_COUNTED}", 0)) for lane in LANES}

"""Exports the state of the process: its lanes, Redis, epochs, certificate, and how late its event loop is."""

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime

import redis

from realtime_service.cluster.membership import Membership
from realtime_service.models.precomputed import PrecomputedScores
from realtime_service.serving.status import TYPICAL_TOKENS, ReplicaStatus
from realtime_service.telemetry.metrics import LISTENERS, REDIS, Metrics
from shared_model.clock import Clock
from shared_model.redis_store import clients
from shared_model.tls import CertificateFiles
from shared_model.types import ServingPath

PERIOD_SECONDS = 1.0
#: Between looks at the event loop.
LAG_PERIOD_SECONDS = 0.1
#: Between looks at the certificate of Redis, each on a connection of its own, and the longest look.
CERTIFICATE_PERIOD_SECONDS, REDIS_SECONDS = 60.0, 5.0

log = logging.getLogger(__name__)


async def run(status: ReplicaStatus, membership: Membership, files: CertificateFiles | None, metrics: Metrics) -> None:
    """Until cancelled."""
    while True:
        device = status.device
        for path in device.lanes:
            metrics.set_lane(path, device.queue_depth(path), device.utilisation_of(path))
            if found := pace(status, path, membership.snapshot.policy.targets.get(path, 0.0)):
                metrics.set_pace(path, *found)
            ran = device.take_ran(path)
            metrics.add_batches(path, ran.seconds, ran.tokens, ran.padding)
        metrics.set_redis_up(membership.snapshot.redis_available)
        metrics.nights.set_epochs(epoch_days(status.models.published()))
        if files:
            # Each renewed certificate is read with a connection, and none may come.
            metrics.set_certificate_end(LISTENERS, files.current().ends)
        await asyncio.sleep(PERIOD_SECONDS)


def pace(status: ReplicaStatus, path: ServingPath, target: float) -> tuple[float, float] | None:
    """When a typical request of a lane would end, as a share of its p95 `target`, or of the timeout that is assumed for
    it; and how many typical texts a second it answers with its device to itself. None while the lane warms up."""
    if not status.models.serving.models:
        return None
    typical = status.device.typical(status.models.active, path, TYPICAL_TOKENS)
    if typical is None:
        return None
    finish, _, per_text = typical
    return finish / (target or status.device.lanes[path].assumed_timeout), 1 / per_text


async def watch_loop(metrics: Metrics, clock: Clock) -> None:
    """Until cancelled."""
    while True:
        due = clock.monotonic() + LAG_PERIOD_SECONDS
        await asyncio.sleep(LAG_PERIOD_SECONDS)
        metrics.observe_lag(max(0.0, clock.monotonic() - due))


async def watch_redis_certificate(url: str, metrics: Metrics) -> None:
    """Until cancelled. The figure of before stays while Redis does not answer."""
    while True:
        try:
            metrics.set_certificate_end(REDIS, await asyncio.to_thread(clients.certificate_end, url, REDIS_SECONDS))
        except (redis.RedisError, OSError) as error:
            log.debug("the certificate of Redis could not be read: %s", error)
        await asyncio.sleep(CERTIFICATE_PERIOD_SECONDS)


def epoch_days(published: Iterable[PrecomputedScores]) -> dict[str, float]:
    """By release, the seconds in which the day of its epoch began; without those that have none."""
    # The name of an epoch is the day and the token.
    days = {it.release: it.epoch.partition(".")[0] for it in published if it.epoch}
    return {release: datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() for release, day in days.items()}

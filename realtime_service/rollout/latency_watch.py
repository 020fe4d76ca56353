"""Measures every ten minutes whether the releases that answer meet their lanes' latency budgets on this host.

A lane over its budget goes on, marked as slow: a restart must never close a lane. It raises an alert. A lane that takes
no request because its predictions are too long is observed every second.
"""

import asyncio
import logging
from collections.abc import Mapping

from realtime_service.models.latency_budgets import PERIOD_SECONDS
from realtime_service.models.registry import Model, Models
from realtime_service.rollout.loader import Loader
from realtime_service.settings import Lane
from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import Clock
from shared_model.types import ServingPath

_LOOK_SECONDS = 1.0

log = logging.getLogger(__name__)


class LatencyWatch:
    def __init__(
        self, models: Models, loader: Loader, lanes: Mapping[ServingPath, Lane], metrics: Metrics, clock: Clock
    ) -> None:
        self._models = models
        self._loader = loader
        self._lanes = lanes
        self._metrics = metrics
        self._clock = clock
        self._due = clock.monotonic()

    async def run(self) -> None:
        """Measure until cancelled, at once first."""
        while True:
            await self.run_once()
            await asyncio.sleep(_LOOK_SECONDS)

    async def run_once(self) -> None:
        """Measure if it is time, and set the metrics of the release that is active now."""
        if self._clock.monotonic() >= self._due:
            for model in list(self._models.serving.models.values()):
                await self._measure(model)
            self._due = self._clock.monotonic() + PERIOD_SECONDS
        await self._recalibrate(self._models.active)
        timings = self._models.active.timings
        by_lane = {path: timings.get(lane.precision) for path, lane in self._lanes.items()}
        self._metrics.set_lane_timings(
            {path: (found.milliseconds / 1000, found.slow) for path, found in by_lane.items() if found}
        )

    async def _recalibrate(self, model: Model) -> None:
        try:
            await self._loader.recalibrate(model)
        except Exception:
            # As below; the next one is in a second.
            log.exception("recalibrating %s failed", model.release)

    async def _measure(self, model: Model) -> None:
        before = dict(model.timings)
        try:
            await self._loader.measure(model)
        except Exception:
            # Engines raise anything, and a measurement must not end the replica; the next one is in ten minutes.
            log.exception("timing %s failed", model.release)
        for precision, found in model.timings.items():
            if found.slow != (precision in before and before[precision].slow):
                mark = "is slow here" if found.slow else "meets its budget again"
                log.warning("release %s: %s %s: it %s", model.release, precision, mark, found)

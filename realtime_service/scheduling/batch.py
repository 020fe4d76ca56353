"""The work of one call of an engine."""

from dataclasses import dataclass

from realtime_service.scheduling.latency_model import LatencyModel
from realtime_service.scheduling.queue import Task
from shared_model.types import ServingPath


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Tasks of one lane, one variant and one padded width that run in one call of an engine. `wide`: on all cores.
    `ahead`: taken before a stream was free."""

    lane: ServingPath
    tasks: tuple[Task, ...]
    tokens: int
    predicted: float
    wide: bool = False
    ahead: bool = False

    @property
    def latency_model(self) -> LatencyModel:
        latency = self.tasks[0].latency
        return latency.wide if self.wide and latency.wide else latency.narrow

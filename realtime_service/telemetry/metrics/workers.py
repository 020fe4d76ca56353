"""Metrics of a supervisor: of its workers, which have all others."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class WorkerMetrics:
    """`workers`: how many there are; series exist from the start."""

    def __init__(self, workers: int) -> None:
        self.registry = CollectorRegistry()
        self._up = Gauge("tandem_worker_up", "1 while a worker answers here.", ["worker"], registry=self.registry)
        self._restarts = Counter(
            "tandem_worker_restarts_total", "Workers that died in a place.", ["worker"], registry=self.registry
        )
        for worker in range(workers):
            self._up.labels(str(worker))
            self._restarts.labels(str(worker))

    def set_up(self, worker: int, up: bool) -> None:
        self._up.labels(str(worker)).set(up)

    def restarted(self, worker: int) -> None:
        self._restarts.labels(str(worker)).inc()

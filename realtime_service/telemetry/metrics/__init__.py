"""All metrics of the process. Other modules call methods and never use a metric's name."""

import functools
import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from prometheus_client import Counter, Gauge, Histogram, ProcessCollector

from realtime_service.settings import Lane
from realtime_service.telemetry.metrics.changing_series import ChangingSeries
from realtime_service.telemetry.metrics.nights import NightMetrics
from realtime_service.telemetry.metrics.postponed import PostponedUpdates
from realtime_service.telemetry.metrics.service_levels import Totals
from shared_model.types import ServingPath

Ids = dict[str, str] | None
#: Seconds. The lanes' targets (50 ms, 500 ms) are edges, so that the share inside the SLO is exact.
_LATENCY_EDGES = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.035, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0, 2.5, 10.0)
_DEVICE_EDGES = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
#: Models with a label of their own, for the life of the process.
_MOST_MODELS = 32
_BATCH_EDGES = (1, 2, 4, 8, 16, 32, 64)
#: Seconds. An answer of the latency lane is due in 50 ms, so a loop that wakes up later than that is an edge.
_LAG_EDGES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
#: The label of requests that ended before the decision, and of calls of methods that do not exist.
UNDECIDED, UNKNOWN_METHOD = "none", "unknown"
_REQUEST_PATHS = (
    UNDECIDED,
    ServingPath.LATENCY,
    ServingPath.DYNAMIC,
    ServingPath.THROUGHPUT,
    ServingPath.PRECOMPUTED,
)
#: That are watched: this process's own, and that of Redis, which takes a renewed one only with a restart.
CERTIFICATES = LISTENERS, REDIS = "listeners", "redis"
#: The codes that alerts ask for, of each method.
WATCHED_CODES = ("OK", "INTERNAL", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "UNAUTHENTICATED")


class Outcome(StrEnum):
    """The end of a request. `met`: inside its own deadline, or its lane's target if it has none."""

    MET = "met"
    LATE = "late"
    REFUSED = "refused"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"
    INVALID = "invalid"
    DEFERRED = "deferred"


class Metrics:
    """Metrics of one replica, on a registry of their own.

    A series that alerts ask for exists from the start, with 0: one that begins with its first event has no rate, and a
    ratio without one of its sides does not exist.
    """

    def __init__(self, lanes: Collection[Lane]) -> None:
        self.registry = PostponedUpdates()
        # Of the updates that every call makes.
        self._later = self.registry.later
        requests = self._counter("tandem_requests_total", "Requests by how they ended.", "path", "outcome", "model")
        reasons = self._counter("tandem_decisions_total", "Routing decisions by reason.", "path", "reason")
        seconds = self._histogram("tandem_request_seconds", "From arrival to answer.", _LATENCY_EDGES, "path", "model")
        queue = self._histogram("tandem_queue_seconds", "From arrival to the device.", _DEVICE_EDGES, "path")
        compute = self._histogram("tandem_compute_seconds", "Of the batch a request ran in.", _DEVICE_EDGES, "path")
        rows = self._histogram("tandem_batch_rows", "Rows of the batch a request ran in.", _BATCH_EDGES, "path")
        calls = self._counter("tandem_calls_total", "Calls and streams by gRPC's status.", "method", "code")
        # "": of requests that end before their model is known.
        self._known_models = {""}
        self._all_requests, self._all_seconds = requests, seconds
        self._timed_paths = (*(it.path for it in lanes), ServingPath.PRECOMPUTED)
        # Cached by labels: `labels` takes longer than the increment that every request makes.
        self._requests, self._reasons = functools.cache(requests.labels), functools.cache(reasons.labels)
        self._seconds, self._queue = functools.cache(seconds.labels), functools.cache(queue.labels)
        self._compute, self._rows = functools.cache(compute.labels), functools.cache(rows.labels)
        self._calls = functools.cache(calls.labels)
        self._add_lanes()
        self._add_deferred()
        #: Of nightly runs.
        self.nights = NightMetrics(self.registry)
        self._add_releases()
        self._add_routing()
        self._add_process()
        self._describe(lanes)
        self._begin("")

    def _add_lanes(self) -> None:
        self._waiting = self._gauge("tandem_waiting", "Texts waiting for the device.", "path")
        self._load = self._gauge("tandem_load", "Arrival rate × service time ÷ streams of a lane.", "path")
        self._capacity = self._gauge(
            "tandem_lane_capacity_texts_per_second", "Typical texts that it answers with its device to itself.", "path"
        )
        self._busy = self._counter("tandem_device_busy_seconds_total", "Batches' seconds ÷ streams.", "path")
        self._tokens = self._counter("tandem_tokens_total", "Tokens of texts that a device ran.", "path")
        self._padding = self._counter("tandem_padding_tokens_total", "Those that padded them.", "path")
        self._late = self._gauge("tandem_predicted_lateness_ratio", "Predicted end ÷ the lane's p95 target.", "path")
        self._call = self._gauge("tandem_lane_call_seconds", "Median call of the lane's budget on this host.", "path")
        self._places = self._gauge("tandem_lane_device_info", "Where the lane computes.", "path", "device")
        self._slow = self._gauge("tandem_lane_slow", "1 if that is over the lane's latency budget.", "path")

    def _add_deferred(self) -> None:
        self._backlog = self._gauge("tandem_deferred_waiting", "Deferred requests that no consumer is at.")
        self._backlog_due = self._gauge("tandem_deferred_deadline_timestamp_seconds", "Their earliest deadline, UTC.")
        self._backlog_oldest = self._gauge(
            "tandem_deferred_oldest_timestamp_seconds", "When the oldest that is not answered was accepted, UTC."
        )
        # Until the store answers: a deadline of 0, the least of all replicas, would scale the lanes for a backlog.
        self.set_backlog(0, math.inf, math.inf)
        self._harvested = self._counter("tandem_harvested_total", "Deferred requests answered by idle lanes.")
        self._unanswered = self._counter(
            "tandem_deferred_unanswered_total", "Deferred requests that ended without an answer.", "why"
        )

        ids = self._counter("tandem_lookup_ids_total", "Message ids that were looked up.", "outcome")
        self._ids_found, self._ids_absent = ids.labels("found"), ids.labels("absent")

    def _add_releases(self) -> None:
        self._release = self._changing("tandem_release_info", "The releases this replica serves.", "model", "release")
        self._canary = self._changing(
            "tandem_canary_weight", "Share of callers the canary answers.", "model", "release"
        )
        self._unfit = self._changing("tandem_release_failed", "Releases that must not serve here.", "release", "reason")

    def _add_routing(self) -> None:
        forwarded = self._counter(
            "tandem_forwarded_total", "Calls sent to other replicas by how they ended.", "path", "outcome"
        )
        self._forwarded = functools.cache(forwarded.labels)
        self._again = self._counter("tandem_forwarded_again_total", "Those sent on again, elsewhere.", "failure")
        self._ejections = self._counter("tandem_ejections_total", "Replicas ejected after failures.", "reason")
        self._ejected = self._gauge("tandem_ejected", "Replicas that are ejected now.")

    def _add_process(self) -> None:
        # Memory, CPU seconds and open files, under the names that all of Prometheus' clients use.
        ProcessCollector(registry=self.registry)
        self.spans_dropped = self._counter("tandem_spans_dropped_total", "Spans that were not exported.").inc
        self._redis = self._gauge("tandem_redis_up", "1 while Redis answers.")
        self._certificate_ends = self._gauge(
            "tandem_certificate_expiry_timestamp_seconds",
            "When the certificate of the listeners, or of Redis, ends; 0 without TLS.",
            "of",
        )
        for of in CERTIFICATES:
            self.set_certificate_end(of, 0.0)
        self._lag = self._histogram(
            "tandem_event_loop_lag_seconds", "By how much the event loop wakes up too late.", _LAG_EDGES
        )

    def totals(self, at: float) -> Totals:
        """Since the start, of all models."""
        self.registry.update()
        return Totals.of(at, self._all_requests.collect(), self._all_seconds.collect())

    def expect_models(self, names: Iterable[str]) -> None:
        """Begin the series of models that are served."""
        for name in names:
            self._model(name)

    def expect_calls(self, method: str) -> None:
        """Begin the series of a method that is served."""
        for code in WATCHED_CODES:
            self._calls(method, code)

    def call_ended(self, method: str, code: str) -> None:
        """Count the end of a call or a stream. `code`: the name of a gRPC status code."""
        self._later(self._count_call, method, code)

    def answered(self, path: ServingPath, seconds: float, met: bool, model: str, ids: Ids = None) -> None:
        """`ids`: of a sampled request's trace, for exemplars."""
        self._later(self._count_answered, path, seconds, met, self._model(model), ids)

    def computed(self, path: ServingPath, queued: float, seconds: float, rows: int, ids: Ids = None) -> None:
        """An answered request's time in the queue, and the time and rows of its last batch."""
        self._later(self._count_computed, path, queued, seconds, rows, ids)

    def ended(self, path: ServingPath | None, outcome: Outcome, model: str = "") -> None:
        """Count a request that ended without an answer; `path`: its own lane if the decision refused it, None if it
        ended before that; `model`: "" if before it was known."""
        self._later(self._count_ended, path or UNDECIDED, outcome, self._model(model))

    def decided(self, path: ServingPath, reason: str) -> None:
        self._later(self._count_decided, path, reason)

    def forwarded(self, path: ServingPath, outcome: str) -> None:
        """Count the end of a forwarded call: answered, expired, or one of `retryable.Failure`."""
        self._forwarded(path, outcome).inc()

    def forwarded_again(self, failure: str) -> None:
        """Count a call that is forwarded to another replica after this failure."""
        self._again.labels(failure).inc()

    def ejected(self, reason: str) -> None:
        self._ejections.labels(reason).inc()

    def set_ejected(self, replicas: int) -> None:
        self._ejected.set(replicas)

    def backfilled(self, count: int) -> None:
        self._harvested.inc(count)

    def unanswered(self, why: str, count: int) -> None:
        """Count deferred requests that ended without an answer; one process counts each."""
        self._unanswered.labels(why).inc(count)

    def looked_up(self, ids: int, found: int) -> None:
        """Count the ids of a look-up, and those of them that the night has scored."""
        self._ids_found.inc(found)
        self._ids_absent.inc(ids - found)

    def set_lane(self, path: ServingPath, texts: int, load: float) -> None:
        """`texts`: that wait."""
        self._waiting.labels(path).set(texts)
        self._load.labels(path).set(load)

    def set_pace(self, path: ServingPath, lateness: float, texts_per_second: float) -> None:
        """Set the predicted lateness and the capacity of a lane that is warm."""
        self._late.labels(path).set(lateness)
        self._capacity.labels(path).set(texts_per_second)

    def add_batches(self, path: ServingPath, busy: float, tokens: int, padding: int) -> None:
        """Count what a device ran. `busy`: seconds in which it did nothing else."""
        self._busy.labels(path).inc(busy)
        self._tokens.labels(path).inc(tokens)
        self._padding.labels(path).inc(padding)

    def set_backlog(self, waiting: int, deadline: float, oldest: float) -> None:
        """Both in seconds since 1970, infinite without one."""
        self._backlog.set(waiting)
        self._backlog_due.set(deadline)
        self._backlog_oldest.set(oldest)

    def set_placements(self, devices: Mapping[ServingPath, str]) -> None:
        for path, device in devices.items():
            self._places.labels(path, device).set(1)

    def set_redis_up(self, up: bool) -> None:
        self._redis.set(up)

    def set_serving(self, models: Mapping[str, tuple[str, str, float]]) -> None:
        """Set the active release, the canary or "" and its share of each model."""
        self._release.replace({(self._model(model), active): 1 for model, (active, _, _) in models.items()})
        self._canary.replace(
            {(self._model(model), canary): weight for model, (_, canary, weight) in models.items() if canary}
        )

    def set_failed(self, failed: Iterable[tuple[str, str]]) -> None:
        """(release, reason) of the releases of the pointer that this replica does not serve."""
        self._unfit.replace({(release, reason): 1 for release, reason in failed})

    def set_lane_timings(self, timings: Mapping[ServingPath, tuple[float, bool]]) -> None:
        """Set the seconds of each lane's call, and whether they are over its budget."""
        for path, (seconds, slow) in timings.items():
            self._call.labels(path).set(seconds)
            self._slow.labels(path).set(slow)

    def set_certificate_end(self, of: str, at: float) -> None:
        """`of`: one of CERTIFICATES; `at`: seconds since 1970, 0 without a certificate."""
        self._certificate_ends.labels(of).set(at)

    def observe_lag(self, seconds: float) -> None:
        self._lag.observe(seconds)

    def set_targets(self, p95: Mapping[ServingPath, float], load: Mapping[ServingPath, float]) -> None:
        """Set the targets that operators may change: p95 in seconds, and utilisation; 0 for no target."""
        for gauge, targets in ((self._target_seconds, p95), (self._target_load, load)):
            gauge.replace({(path,): target for path, target in targets.items() if target})

    def _describe(self, lanes: Collection[Lane]) -> None:
        rate = self._gauge("tandem_lane_target_requests_per_second", "A lane's throughput target.", "path")
        self._target_seconds = self._changing("tandem_lane_target_seconds", "A lane's p95 target.", "path")
        self._target_load = self._changing("tandem_load_target", "Load above which a lane's tail grows.", "path")
        self.set_targets({it.path: it.target_seconds for it in lanes}, {it.path: it.load_target for it in lanes})
        for lane in lanes:
            if lane.target_rate:
                rate.labels(lane.path).set(lane.target_rate)

    def _count_call(self, method: str, code: str) -> None:
        self._calls(method, code).inc()

    def _count_answered(self, path: ServingPath, seconds: float, met: bool, model: str, ids: Ids) -> None:
        self._requests(path, Outcome.MET if met else Outcome.LATE, model).inc()
        self._seconds(path, model).observe(seconds, ids)

    def _count_computed(self, path: ServingPath, queued: float, seconds: float, rows: int, ids: Ids) -> None:
        self._queue(path).observe(queued, ids)
        self._compute(path).observe(seconds, ids)
        self._rows(path).observe(rows)

    def _count_ended(self, path: str, outcome: Outcome, model: str) -> None:
        self._requests(path, outcome, model).inc()

    def _count_decided(self, path: ServingPath, reason: str) -> None:
        self._reasons(path, reason).inc()

    def _model(self, name: str) -> str:
        """The label of a model, of which there is a bounded number. `name`: one that was promoted."""
        if name in self._known_models:
            return name
        if len(self._known_models) > _MOST_MODELS:
            return "other"
        self._known_models.add(name)
        self._begin(name)
        if len(self._known_models) > _MOST_MODELS:
            self._begin("other")
        return name

    def _begin(self, model: str) -> None:
        for path, outcome in itertools.product(_REQUEST_PATHS, Outcome):
            self._requests(path, outcome, model)
        for path in self._timed_paths if model else ():
            self._seconds(path, model)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _changing(self, name: str, text: str, *labels: str) -> ChangingSeries:
        return ChangingSeries(self._gauge(name, text, *labels))

    def _histogram(self, name: str, text: str, edges: Iterable[float], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=tuple(edges), registry=self.registry)

"""Exports spans from a thread of its own, and a bounded number of them waits: a collector that is down costs spans, and
nothing else. Losses are counted, and logged once a minute."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

#: Spans that wait or are being sent; later ones are dropped.
MOST_WAITING = 2048
LOG_SECONDS = 60.0

_FULL = "more come than the collector takes"

log = logging.getLogger(__name__)


class Losses:
    """`dropped`: called with the number of each loss."""

    def __init__(self, dropped: Callable[[int], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._dropped = dropped
        self._clock = clock
        self._lock = threading.Lock()
        self._untold = 0
        self._next = clock()

    def add(self, spans: int, why: str) -> None:
        """For any thread."""
        self._dropped(spans)
        with self._lock:
            self._untold += spans
            untold, now = self._untold, self._clock()
            if now < self._next:
                return
            self._untold, self._next = 0, now + LOG_SECONDS
        log.warning("%d spans were dropped: %s", untold, why)


class _Reasons(logging.Filter):
    """Keeps the first of the lines that the exporter would log for a batch, as the reason of its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ""

    def filter(self, record: logging.LogRecord) -> bool:
        self.first = self.first or record.getMessage()
        return False


class BoundedProcessor(BatchSpanProcessor):
    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._lock = threading.Lock()
        self._waiting = 0
        self._exporter = OTLPSpanExporter()
        super().__init__(_Told(self._exporter, self._exported), max_queue_size=MOST_WAITING)

    def on_end(self, span: ReadableSpan) -> None:
        with self._lock:
            full = self._waiting >= MOST_WAITING
            self._waiting += not full
        if full:
            self._losses.add(1, _FULL)
        else:
            super().on_end(span)

    def give_up(self) -> None:
        """Try no failed export again."""
        self._exporter.shutdown()

    def _exported(self, spans: int, problem: str) -> None:
        with self._lock:
            self._waiting -= spans
        if problem:
            self._losses.add(spans, problem)


class _Told(SpanExporter):
    """Tells the end of each export: the number of its spans, and a problem or ""."""

    def __init__(self, inner: OTLPSpanExporter, told: Callable[[int, str], None]) -> None:
        self._inner = inner
        self._told = told
        self._reasons = _Reasons()
        trace_exporter._logger.addFilter(self._reasons)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        problem, self._reasons.first = "the export failed", ""
        try:
            result = self._inner.export(spans)
            problem = "" if result is SpanExportResult.SUCCESS else f"{self._inner._endpoint}: {self._reasons.first}"
        finally:
            self._told(len(spans), problem)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()
        trace_exporter._logger.removeFilter(self._reasons)

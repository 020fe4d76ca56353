"""The spans of a batch: each request's wait in the queue, the batch with links to its requests, and the engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from shared_model import tracing
from shared_model.tracing import Work


@dataclass(frozen=True, slots=True)
class RanBatch:
    """A batch that has ended. `began`, `ended`: from its place on a stream to its results; `engine_began`: in the
    engine, for `engine_seconds`. Times are nanoseconds since 1970."""

    lane: str
    release: str
    precision: str
    rows: int
    tokens: int
    began: int
    ended: int
    engine_began: int = 0
    engine_seconds: float = 0.0


@dataclass(eq=False, slots=True)
class QueuedWork:
    """A sampled request that waits for a device since `since`, in nanoseconds since 1970."""

    work: Work
    since: int


def note(batch: RanBatch, queued: Sequence[QueuedWork], found: object) -> None:
    """`found`: the result, or the exception that the engine raised. `queued`: the sampled requests of its rows, at
    least one. The batch is a part of the first one's trace; the others find it by their link."""
    requests = list(dict.fromkeys(queued))
    first = requests[0].work
    tracer, lane = first.tracer, {"tandem.lane": batch.lane}
    attributes: dict[str, str | int] = {
        **lane,
        "tandem.release": batch.release,
        "tandem.precision": batch.precision,
        "tandem.batch.rows": batch.rows,
        "tandem.batch.tokens": batch.tokens,
    }
    links = [it.work.span for it in requests]
    span = tracer.child(first.span, "batch", start=batch.began, attributes=attributes, links=links)
    for it in requests:
        waited = tracer.child(it.work.span, "queue", start=it.since, attributes=lane, links=[span])
        waited.end(batch.began)
    if not isinstance(found, Exception):
        engine = tracer.child(span, "engine", start=batch.engine_began, attributes=attributes)
        engine.end(batch.engine_began + round(batch.engine_seconds * 1e9))
    else:
        tracing.fail(span, found)
    span.end(batch.ended)

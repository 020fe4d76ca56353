"""The spans of a batch: each request's wait in the queue, the batch with links to its requests, and the engine."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    spans = [it.work.span for it in requests]
    child, lane = queued[0].work.tracer.child, {"tandem.lane": batch.lane}
    attributes: dict[str, str | int] = {
        **lane,
        "tandem.release": batch.release,
        "tandem.precision": batch.precision,
        "tandem.batch.rows": batch.rows,
        "tandem.batch.tokens": batch.tokens,
    }
    ran = child(spans[0], "batch", start=batch.began, attributes=attributes, links=spans)
    for it in requests:
        child(it.work.span, "queue", start=it.since, attributes=lane, links=[ran]).end(batch.began)
    if isinstance(found, Exception):
        ran.fail(found)
    else:
        engine = child(ran, "engine", start=batch.engine_began)
        engine.end(batch.engine_began + round(batch.engine_seconds * 1e9))
    ran.end(batch.ended)

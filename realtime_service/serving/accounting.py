"""How each request ended, counted once: in the metrics of its lane and in the statistics of its release."""

import asyncio

from realtime_service.errors import (
    DeadlineExpired,
    ModelLoading,
    Overloaded,
    PermissionDenied,
    Relayed,
    ReplicaUnavailable,
)
from realtime_service.models.registry import Model
from realtime_service.scheduling.scheduler import ready_by
from realtime_service.serving.answer import Answer
from realtime_service.serving.request import RequestContext
from realtime_service.telemetry.metrics import UNDECIDED, Metrics, Outcome
from shared_model import tracing
from shared_model.clock import Clock
from shared_model.errors import AlreadyExists, BadInput, QueueFull, StoreUnavailable, UnknownRelease

#: The way of an answer to its caller takes this share of the time that the scheduler leaves for it. With 1 the service
#: counted 92 late answers in a burst of which an external client saw 58; with 1/2 it counted 44 of 60.
_DELIVERY_TAKES = 2 / 3

_OUTCOMES: dict[type[BaseException], Outcome] = {
    UnknownRelease: Outcome.INVALID,
    BadInput: Outcome.INVALID,
    AlreadyExists: Outcome.INVALID,
    PermissionDenied: Outcome.INVALID,
    Overloaded: Outcome.REFUSED,
    QueueFull: Outcome.REFUSED,
    StoreUnavailable: Outcome.REFUSED,
    ReplicaUnavailable: Outcome.REFUSED,
    ModelLoading: Outcome.REFUSED,
    DeadlineExpired: Outcome.EXPIRED,
    asyncio.CancelledError: Outcome.CANCELLED,
}
#: Ends that the caller did not cause.
UNSERVED = frozenset({Outcome.REFUSED, Outcome.EXPIRED, Outcome.FAILED})


def outcome_of(error: BaseException) -> Outcome:
    """How a request ended without an answer. An error that the table has not, as `ScoringFailed`, is our failure."""
    return _OUTCOMES.get(type(error), Outcome.FAILED)


class Accounting:
    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock

    def answered(self, context: RequestContext, answer: Answer) -> float | None:
        """Count an end with an answer. Returns the slack: the deadline less the finish, None without a deadline."""
        work = tracing.current()
        if work is not None:
            work.span.set_attributes(_noted(context, answer))
        if answer.ticket:
            self._metrics.ended(None, Outcome.DEFERRED, context.name)
            return None
        now = self._clock.monotonic()
        target, due = context.snapshot.policy.targets.get(answer.path), context.deadline
        if due is None and target:
            due = context.arrived + target
        seconds, met = now - context.arrived, due is None or now <= _latest_end(context.arrived, due)
        ids = None if work is None else work.ids
        self._metrics.answered(answer.path, seconds, met=met, model=context.name, ids=ids)
        if answer.batch_rows:
            self._metrics.computed(answer.path, answer.queued, answer.computed, answer.batch_rows, ids)
        if context.model:
            self.scored(context.model, answer, seconds)
            if answer.batch_rows:
                slow = bool(target) and seconds > (target or 0.0)
                context.model.statistics.add_lane(answer.path, seconds, late=not met, slow=slow)
        return context.left(now)

    def scored(self, model: Model, answer: Answer, seconds: float) -> None:
        """Count an answer in the statistics of its release."""
        if answer.batch_rows:
            model.statistics.add_computed(seconds, answer.queued, answer.computed, self._clock.wall())
        else:
            model.statistics.add_published(seconds, self._clock.wall())

    def lost(self, context: RequestContext, error: BaseException) -> None:
        """Count an end without an answer. The replica that refused a forwarded call has counted it."""
        if isinstance(error, Relayed):
            return
        outcome, now = outcome_of(error), self._clock.monotonic()
        if (work := tracing.current()) is not None:
            work.span.set_attributes({"tandem.outcome": outcome, "tandem.path": context.path or UNDECIDED})
        self._metrics.ended(context.path, outcome, context.name)
        if context.model:
            # gRPC cancels a call when its deadline has passed.
            expired = context.deadline is not None and context.deadline <= now
            unserved = outcome in UNSERVED or (outcome is Outcome.CANCELLED and expired)
            context.model.statistics.add_failed(now - context.arrived, unserved)


def _noted(context: RequestContext, answer: Answer) -> dict[str, str | int]:
    """The attributes of a sampled request's span. No text of a caller is in them."""
    return {
        "tandem.path": str(answer.path),
        "tandem.release": answer.release,
        "tandem.model": context.name,
        "tandem.texts": len(context.request.texts),
        "tandem.tokens": sum(score.tokens for score in answer.scores),
        "tandem.batch.rows": answer.batch_rows,
    }


def _latest_end(arrived: float, due: float) -> float:
    """The latest end of a call that is counted as in time."""
    return due - _DELIVERY_TAKES * (due - ready_by(arrived, due))

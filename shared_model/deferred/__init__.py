"""Deferred work: accepted now, answered later by an idle lane or by the next Spark run.

    accepted ──claim──▶ claimed ──store result──▶ scored ──acknowledge──▶ published
      │   ▲               │ │ ▲                   also by the next consumer that claims it
      │   ├──── nack ─────┘ │ └─ lease expired: any consumer may claim it again
      │   │                 ├──fail──▶ failed
      │   └── replay ────── │ ───────────┤ as a dead letter: the third delivery, or `dead_letter`
      └── deadline passed ──┴──▶ expired

Execution is at least once; the effect is exactly once, because the result is stored by request id before the work is
acknowledged, and only the first stored result is kept.
"""

from shared_model.deferred.dead_letters import DeadLetter, DeadLetters
from shared_model.deferred.lease import Lease
from shared_model.deferred.scripts import Unanswered
from shared_model.deferred.store import (
    DEFAULTS,
    Accepted,
    Backlog,
    Claimed,
    DeferredQueue,
    Item,
    Outcome,
    State,
    Submission,
)

__all__ = [
    "DEFAULTS",
    "Accepted",
    "Backlog",
    "Claimed",
    "DeadLetter",
    "DeadLetters",
    "DeferredQueue",
    "Item",
    "Lease",
    "Outcome",
    "State",
    "Submission",
    "Unanswered",
]

"""Deferred work: accepted now, answered later by an idle lane or by the next Spark run.

    accepted ──claim──▶ claimed ──score──▶ scored ──publish──▶ published
      │   ▲               │ │ ▲               whoever claims it next
      │   ├── give back ──┘ │ └─ its lease ran out: claimed again, by anybody
      │   │                 ├──fail──▶ failed
      │   └── replay ────── │ ───────────┤ as a dead letter: the third delivery, or `dead_letter`
      └─ its time is over ──┴──▶ expired

Execution is at least once; the effect is exactly once, because a result is written by request id before the work is
acknowledged, and only the first result written is kept.
"""

from shared_model.deferred.dead_letters import DeadLetter, DeadLetters
from shared_model.deferred.lease import Lease
from shared_model.deferred.scripts import Unanswered
from shared_model.deferred.store import DEFAULTS, Claimed, DeferredQueue, Item, State, Submission

__all__ = [
    "DEFAULTS",
    "Claimed",
    "DeadLetter",
    "DeadLetters",
    "DeferredQueue",
    "Item",
    "Lease",
    "State",
    "Submission",
    "Unanswered",
]

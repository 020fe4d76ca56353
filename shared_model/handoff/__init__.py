"""Deferred work: accepted now, answered later by an idle lane or by the next Spark run.

    accepted ──claim──▶ claimed ──publish──▶ published
                           │ ▲
                           │ └─ lease ran out: claimed again, by anybody
                           └──fail──▶ failed

Execution is at least once; the effect is exactly once, because a result is written by request id before the work is
acknowledged, and only the first result written is kept.
"""

from shared_model.handoff.store import Claimed, Handoff, Item, State

__all__ = ["Claimed", "Handoff", "Item", "State"]

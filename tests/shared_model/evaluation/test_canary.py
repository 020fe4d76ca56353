"""A canary is worse where a test shows it, and good only after enough calls."""

import pytest

from shared_model.evaluation import canary
from shared_model.evaluation.canary import Calls, Lane, Outcome


def calls(answered: int = 0, late: int = 0, slow: int = 0, failed: int = 0, path: str = "latency") -> Calls:
    return Calls(failed, {path: Lane(answered, late, slow, answered * 0.004)})


ACTIVE = calls(10_000, late=100, slow=300, failed=10)


@pytest.mark.parametrize(
    ("found", "outcome", "says"),
    [
        (calls(400, late=4, slow=12), Outcome.KEPT, "canary: 400 calls, 0.00% failed; latency: 1.00% late, 3.00% over"),
        (calls(99), Outcome.UNDECIDED, "the canary ended 99 calls, fewer than 100: nothing can be said of it"),
        (calls(), Outcome.UNDECIDED, "the canary ended 0 calls"),
        # Worse at once, however few the calls.
        (calls(0, failed=3), Outcome.WORSE, "100.00% of the canary's calls failed (3 of 3), 0.10% of the active"),
        # One or two may be chance.
        (calls(0, failed=2), Outcome.UNDECIDED, "the canary ended 2 calls"),
        (calls(1_000, failed=3), Outcome.KEPT, "canary: 1003 calls, 0.30% failed"),
        (calls(1_000, failed=12), Outcome.WORSE, "1.19% of the canary's calls failed (12 of 1012)"),
        (calls(1_000, late=100), Outcome.WORSE, "10.00% of the canary's answers in the latency lane were late (100 of"),
        (calls(1_000, late=30), Outcome.KEPT, ""),
        (
            calls(1_000, slow=120),
            Outcome.WORSE,
            "12.00% of the canary's answers in the latency lane took longer than its p95 target (120 of 1000), 3.00%",
        ),
        # A p95 target allows for one in twenty, also where the active release is faster.
        (calls(1_000, slow=50), Outcome.KEPT, ""),
        # The active release has no calls in this lane: its service level still holds for the canary.
        (calls(1_000, late=100, path="dynamic"), Outcome.WORSE, "in the dynamic lane were late"),
    ],
)
def test_the_verdict_on_a_canary(found: Calls, outcome: Outcome, says: str) -> None:
    verdict = canary.judge(found, ACTIVE, 100)
    assert (verdict.outcome, says in verdict.reason) == (outcome, True), verdict.reason


def test_a_canary_is_not_to_blame_for_what_the_active_release_misses_as_well() -> None:
    busy = calls(10_000, late=4_000, slow=5_000, failed=2_000)
    assert canary.judge(calls(1_000, late=400, slow=500, failed=200), busy, 100).outcome is Outcome.KEPT

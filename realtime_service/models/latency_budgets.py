"""Whether this host meets its lanes' latency budgets: timed calls of loaded variants, and the verdict on them."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from realtime_service.models.warmup import Turn, WarmVariant
from shared_model.encoding import InputSpec, TokenBatch
from shared_model.engine import Engine
from shared_model.evaluation.benchmark import Budget
from shared_model.types import Precision

#: Tries of which the median counts, and the seconds between them: a pause of the host spoils one.
TRIES, SPACING_SECONDS = 3, 0.25
#: Seconds between two measurements of what answers.
PERIOD_SECONDS = 600.0
#: Calls of a try, of which the fastest counts: a busy host makes fast variants look slow, but never slow ones fast.
_CALLS = 3
#: Tokens of the text by which a lane that no call recalibrates is recalibrated: most texts are as short.
SHORT_TOKENS = 16
#: A slow variant is fast again below this share of its budget, so that a median close to it does not alternate; and a
#: release is slower than another only where that takes less than this share of its time.
_RECOVERED = 0.9


@dataclass(frozen=True)
class Timing:
    """A variant's calls on this host. `milliseconds`: median of the tries."""

    milliseconds: float
    budget: Budget
    slow: bool

    def __str__(self) -> str:
        call = f"{self.budget.rows}×{self.budget.tokens} tokens"
        allowed = f"{self.budget.milliseconds:g} ms ({self.budget.setting})"
        return f"takes {self.milliseconds:.1f} ms for {call} here, its lane allows {allowed}"


Timings = Mapping[Precision, Timing]


def judge(tries: Sequence[float], budget: Budget, before: Timing | None) -> Timing:
    """The verdict on the milliseconds of several tries. `before`: the last verdict, None for the first."""
    median = statistics.median(tries)
    allowed = budget.milliseconds * (_RECOVERED if before and before.slow else 1.0)
    return Timing(median, budget, median > allowed)


def newly_slow(timings: Timings, active: Timings) -> dict[Precision, Timing]:
    """The variants that miss a budget which the active release's variant meets, and are clearly slower than it."""
    return {
        it: found
        for it, found in timings.items()
        if found.slow
        and (now := active.get(it))
        and not now.slow
        and now.milliseconds < _RECOVERED * found.milliseconds
    }


def time_call(variant: WarmVariant, reads: InputSpec, budget: Budget, turn: Turn) -> float:
    """Milliseconds of the budget's call, as its lane runs it: a batch on one stream.

    One call runs at a time, each after its `turn`, so a live call waits for at most one. Raises: the errors of the
    engine.
    """
    single = budget.rows == 1
    engine = variant.of_single(budget.tokens) if single else variant.narrow
    return _fastest(engine, (budget.rows, budget.tokens), reads, single, turn) * 1000


def time_short(engine: Engine, reads: InputSpec, single: bool, turn: Turn) -> float:
    """Seconds of a single text of `SHORT_TOKENS`. `single`: as in `Engine.score`. As `time_call`."""
    return _fastest(engine, (1, SHORT_TOKENS), reads, single, turn)


def _fastest(engine: Engine, shape: tuple[int, int], reads: InputSpec, single: bool, turn: Turn) -> float:
    rows, tokens = shape
    ones = np.ones((rows, min(tokens, reads.max_tokens)), np.int64)
    batch = TokenBatch(ones, ones, np.zeros_like(ones) if reads.types else None)
    seconds = []
    for _ in range(_CALLS):
        turn()
        started = time.perf_counter()
        engine.score(batch, single)
        seconds.append(time.perf_counter() - started)
    return min(seconds)

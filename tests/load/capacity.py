"""The highest rate that holds, found in few tries."""

from collections.abc import Callable

#: Rates that are tried differ by this factor.
STEP = 1.05
#: Below this power of it, no rate is tried.
_LAST = 32


def highest(start: float, holds: Callable[[float], bool]) -> float | None:
    """The highest of `start` · STEP^n that holds, if all below one that holds do; None where it is too far down."""
    power, stride = 0, 1
    up = holds(start)
    while abs(power) < _LAST:
        following = power + stride if up else power - stride
        if holds(start * STEP**following) != up:
            low, high = (power, following) if up else (following, power)
            return start * STEP ** _bisected(low, high, lambda it: holds(start * STEP**it))
        power, stride = following, 2 * stride
    return start * STEP**power if up else None


def _bisected(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The highest power that holds. `low` does, `high` does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low

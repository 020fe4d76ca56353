"""Statistics of the gate: the upper bound of a share, McNemar's test of a loss, and how often each rule refuses. Pure.

Without labelled texts, only the bound is needed; the rest loads scipy, which serving processes do not have.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

#: Fewest texts on which the reference is certain: from fewer, agreement and loss say little.
MIN_CLEAR = 300
#: A loss is significant at this p-value. The upper bound of agreement has a confidence of 95 %.
SIGNIFICANT_LOSS = 0.01
_Z = NormalDist().inv_cdf(0.95)
#: Probability outside the numbers of texts that a calculation sums over, and the resolution of a detected loss.
_NEGLIGIBLE, _RESOLUTION = 1e-12, 1e-5
#: Shares of texts are not exact in binary.
_ROUNDING = 1e-9

Counts = NDArray[np.int64]


def wilson_upper(successes: int, trials: int, z: float = _Z) -> float:
    """One-sided upper bound of a share, by Wilson's score interval; 1 if all of the trials succeeded. `z`: of the
    confidence, 95 % by default."""
    if successes == trials:
        return 1.0
    share, square = successes / trials, z * z / trials
    half = z * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    return (share + square / 2 + half) / (1 + square)


def wilson_lower(successes: int, trials: int, z: float = _Z) -> float:
    """The lower bound; 0 if none of the trials succeeded."""
    return 1 - wilson_upper(trials - successes, trials, z)


def loss_p(gained: int, lost: int) -> float:
    """One-sided mid-p value of McNemar's test: probability of losing more texts than `lost`, plus half that of losing
    as many, if each of the texts that only one of the two gets right is a fair coin. 0.5 without such texts.

    The exact p-value would be too large on average, and the test would miss losses that it could show.
    """
    from scipy.stats import binom

    flips = gained + lost
    return float(binom.sf(lost, flips, 0.5) + binom.pmf(lost, flips, 0.5) / 2)


def agreement_refused(texts: int, agreement: float, bound: float) -> float:
    """Probability that a variant whose true agreement on clear texts is `agreement` is refused for it."""
    from scipy.stats import binom

    refused = [successes for successes in range(texts) if wilson_upper(successes, texts) < bound]
    return float(binom.cdf(refused[-1], texts, agreement)) if refused else 0.0


@dataclass(frozen=True)
class LossRule:
    """How often the gate refuses a variant for a loss that is significant and above `allowed` points on `texts`
    labelled texts.

    discordance: share of texts that exactly one of variant and reference gets right. loss: share of texts that the
    reference gets right more than the variant does; discordance is at least the loss.
    """

    texts: int
    allowed: float

    def refused(self, discordance: float, loss: float) -> float:
        """Probability that a variant of this true loss is refused, summed over the numbers of discordant texts."""
        from scipy.stats import binom

        share = max(discordance, loss)
        if share == 0:
            return 0.0
        least, most = binom.ppf((_NEGLIGIBLE, 1 - _NEGLIGIBLE), self.texts, share).astype(int)
        discordant = np.arange(max(least, 0), most + 1)
        lost = binom.sf(self._fewest_lost[discordant] - 1, discordant, (1 + loss / share) / 2)
        return float((binom.pmf(discordant, self.texts, share) * lost).sum())

    def detected(self, discordance: float, probability: float) -> float | None:
        """Smallest loss in points that is refused with this probability; None if these texts cannot show any."""
        found, high = 0.0, 1.0
        if self.refused(discordance, high) < probability:
            return None
        while high - found > _RESOLUTION:
            middle = (found + high) / 2
            if self.refused(discordance, middle) < probability:
                found = middle
            else:
                high = middle
        return high * 100

    @cached_property
    def _fewest_lost(self) -> Counts:
        """Fewest lost texts that are refused, by number of discordant texts, int64 (texts + 1,)."""
        from scipy.stats import binom

        discordant = np.arange(self.texts + 1)
        # The exact test refuses from `exact` + 1 lost texts on, and mid-p from there or from one less.
        exact = binom.isf(SIGNIFICANT_LOSS, discordant, 0.5)
        middle = binom.sf(exact, discordant, 0.5) + binom.pmf(exact, discordant, 0.5) / 2
        significant = np.where(middle <= SIGNIFICANT_LOSS, exact, exact + 1)
        enough = np.floor((discordant + self.allowed * self.texts / 100 + _ROUNDING) / 2) + 1
        return np.asarray(np.maximum(significant, enough), np.int64)

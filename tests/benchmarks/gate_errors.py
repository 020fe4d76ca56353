"""python -m tests.benchmarks.gate_errors: how often the gate errs, exactly, as the table of shared_model/README.md.

Rates are sums of binomial probabilities, without simulation. They depend on no machine.
"""

import math
from collections.abc import Iterator, Sequence

from shared_model.evaluation.gate_settings import GateSettings
from shared_model.evaluation.significance import LossRule, agreement_refused

DISCORDANCES = (0.005, 0.010, 0.015, 0.020, 0.025, 0.030)
_TEXTS = (300, 1000, 3000)
#: The variants that the two error rates are about: one without a loss, and one that loses a point.
_AGREES, _LOSES = 0.995, 0.01
_BOUNDS = GateSettings()


def false_refusal(texts: int, discordance: float) -> float:
    """Probability, at most, that a variant is refused that loses nothing and agrees on 99.5 % of clear texts."""
    agreement = agreement_refused(texts, _AGREES, _BOUNDS.gate_min_agreement)
    return agreement + LossRule(texts, _BOUNDS.gate_max_accuracy_drop).refused(discordance, 0.0)


def missed(texts: int, discordance: float) -> float:
    """Probability, at most, that a variant passes that loses one point."""
    return 1 - LossRule(texts, _BOUNDS.gate_max_accuracy_drop).refused(discordance, _LOSES)


def below_floor(texts: int, differing: float) -> float:
    """Probability that the floor refuses a variant that names another label for this share of all texts."""
    from scipy.stats import binom

    allowed = math.floor((1 - _BOUNDS.gate_min_labelled_agreement) * texts + 1e-9)
    return float(binom.sf(allowed, texts, differing))


def rows() -> Iterator[Sequence[str]]:
    """The table: one row for each number of texts and kind of error."""
    yield "labelled texts", "error at a discordance of", *(f"{share:.1%}" for share in DISCORDANCES)
    yield ("---",) * (2 + len(DISCORDANCES))
    for texts in _TEXTS:
        yield f"{texts:,}", "no loss, refused", *(f"{false_refusal(texts, share):.1%}" for share in DISCORDANCES)
        # The texts of a loss are discordant, so there is no smaller discordance.
        passed = (f"{missed(texts, share):.1%}" if share >= _LOSES else "–" for share in DISCORDANCES)
        yield f"{texts:,}", "a loss of 1 point, passed", *passed
        floor = (f"{below_floor(texts, share):.1%}" for share in DISCORDANCES)
        yield f"{texts:,}", "differs on as many texts, below the floor", *floor


def main() -> None:
    for row in rows():
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()

"""How many examples a property is tried with: half as many as its test says in `make test`, more in `make proof`."""

import hypothesis

_ORDINARY = 100


def examples(count: int) -> int:
    """`count`, in proportion to what the hypothesis profile runs where a test says nothing: of Hypothesis's own 100."""
    return count * hypothesis.settings().max_examples // _ORDINARY

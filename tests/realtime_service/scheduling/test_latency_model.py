"""The least time that texts of some length may take: no longer ones are predicted to take less."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from realtime_service.scheduling.latency_model import LatencyModel
from shared_model.encoding import coarse_bucket

seconds = st.floats(0.0001, 0.1)
WIDTHS = tuple(range(8, 72, 8))


@given(
    st.tuples(seconds, seconds, st.floats(1e-6, 1e-3)),
    st.dictionaries(st.sampled_from(WIDTHS), seconds),
    st.lists(st.tuples(st.sampled_from(WIDTHS), seconds), max_size=5),
    st.integers(1, 64),
)
def test_a_longer_text_is_never_predicted_to_take_less(
    fit: tuple[float, float, float],
    singles: dict[int, float],
    observed: list[tuple[int, float]],
    tokens: int,
) -> None:
    """Whichever widths were measured, and however the times changed since."""
    one = LatencyModel(*fit, singles)
    for width, taken in observed:
        one.observe(1, width, taken)
    least = one.at_least(1, coarse_bucket(tokens))
    assert all(least <= one.predict(1, width) for width in WIDTHS if width >= tokens)


@given(st.tuples(seconds, seconds, st.floats(1e-6, 1e-3)), st.lists(st.integers(1, 64), min_size=2, max_size=20))
def test_texts_of_several_widths_are_never_predicted_to_take_less_than_one_batch(
    fit: tuple[float, float, float], tokens: list[int]
) -> None:
    one, widths = LatencyModel(*fit), Counter(map(coarse_bucket, tokens))
    apart = sum(one.predict(count, width) for width, count in widths.items())
    least = one.at_least(len(tokens), sum(widths.elements()) / len(tokens))
    assert least <= apart * (1 + 1e-9)
    assert all(
        one.at_least(len(tokens), few) <= one.at_least(len(tokens), more) for few, more in pairwise(sorted(widths))
    )

"""A batch that did not fit is not tried again, at that width or a greater one, for that release on that device."""

from hypothesis import given
from hypothesis import strategies as st

from batch_job.scoring.ceilings import Ceilings
from shared_model.encoding import coarse_bucket

HERE, ELSEWHERE, OTHER = ("release", "cuda:0"), ("release", "cuda:1"), ("other", "cuda:0")

widths = st.integers(1, 512)
rows = st.integers(1, 64)


@given(widths, rows)
def test_what_nobody_has_seen_fail_may_run(tokens: int, wanted: int) -> None:
    assert Ceilings().most(HERE, tokens, wanted) == wanted


@given(st.lists(st.tuples(widths, rows), min_size=1), widths, rows)
def test_a_ceiling_holds_at_its_bucket_and_above_and_nowhere_else(
    failed: list[tuple[int, int]], tokens: int, wanted: int
) -> None:
    ceilings = Ceilings()
    for width, count in failed:
        # Each try is as large as the ceiling allows.
        ceilings.too_many(HERE, width, ceilings.most(HERE, width, count))
    expected = wanted
    for width, count in failed:
        if coarse_bucket(width) <= coarse_bucket(tokens):
            expected = min(expected, max(1, count // 2))
    most = ceilings.most(HERE, tokens, wanted)
    assert 1 <= most <= expected
    if coarse_bucket(tokens) < min(coarse_bucket(width) for width, _ in failed):
        assert most == wanted
    assert ceilings.most(ELSEWHERE, tokens, wanted) == ceilings.most(OTHER, tokens, wanted) == wanted


def test_the_number_of_rows_falls_by_halves_down_to_one() -> None:
    ceilings, seen = Ceilings(), []
    for _ in range(8):
        seen.append(ceilings.most(HERE, 24, 64))
        ceilings.too_many(HERE, 24, seen[-1])
    assert seen == [64, 32, 16, 8, 4, 2, 1, 1]
    assert (ceilings.most(HERE, 17, 64), ceilings.most(HERE, 16, 64)) == (1, 64)

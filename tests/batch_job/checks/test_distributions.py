"""How far distributions have moved: by release, against noise, and within a bound."""

import random
from collections import Counter

import pytest

from batch_job.checks import distributions
from batch_job.checks.gate import FEWEST
from batch_job.reporting.drift_figures import Comparison, Span
from batch_job.run_record import Outcome
from batch_job.tables.counting import Counts, Key

NOW, BEFORE = Span("2026-02-01", "2026-02-07", 7), Span("2026-01-01", "2026-01-30", 30)
OLD, NEW = "small-0123456789ab", "small-ba9876543210"


def drawn(rows: int, seed: int, middle: float = 0.5) -> Counts:
    chance = random.Random(seed)
    return Counts(
        rows=rows,
        labels=Counter(chance.choices("abcdef", weights=(5, 4, 3, 2, 1, 1), k=rows)),
        scores=Counter(min(100, max(0, round(chance.gauss(100 * middle, 15)))) for _ in range(rows)),
        lengths=Counter(chance.randint(3, 40) for _ in range(rows)),
    )


def compared(counts: dict[Key, Counts], bound: float = 0.1) -> list[Comparison]:
    return distributions.compare(NOW, BEFORE, counts, bound)


def outcomes(of: Comparison) -> dict[str, Outcome]:
    return {shift.distribution: shift.outcome for shift in of.shifts}


@pytest.mark.parametrize("seed", range(20))
def test_two_samples_of_one_distribution_stay_within_noise(seed: int) -> None:
    counts = {("2026-01-05", OLD): drawn(20_000, seed), ("2026-02-05", OLD): drawn(2_000, 100 + seed)}
    (found,) = compared(counts, bound=1e-9)
    assert [it.distribution for it in found.shifts if it.value > 2 * it.noise] == []
    assert sum(it.outcome is Outcome.FAIL for it in found.shifts) <= 1


def test_only_what_has_moved_fails_and_days_beside_the_spans_do_not_count() -> None:
    counts = {
        ("2026-01-01", OLD): drawn(5_000, 1),
        ("2026-01-30", OLD): drawn(5_000, 2),
        ("2026-01-31", OLD): drawn(50_000, 3, middle=0.1),
        ("2026-02-01", OLD): drawn(1_000, 4, middle=0.7),
        ("2026-02-07", OLD): drawn(1_000, 5, middle=0.7),
        ("2026-02-08", OLD): drawn(9_000, 6),
    }
    (found,) = compared(counts)
    assert (found.rows, found.baseline_rows, found.same_release) == (2_000, 10_000, True)
    assert outcomes(found) == {"labels": Outcome.OK, "scores": Outcome.FAIL, "lengths": Outcome.OK}


def test_a_bound_is_exceeded_by_a_label_that_vanishes_alone() -> None:
    rows = drawn(10_000, 2)
    rows.labels["a"], rows.labels["f"] = 0, rows.labels["f"] + rows.labels["a"]
    (found,) = compared({("2026-01-05", OLD): drawn(10_000, 1), ("2026-02-05", OLD): rows})
    assert outcomes(found) == {"labels": Outcome.FAIL, "scores": Outcome.OK, "lengths": Outcome.OK}
    first, *_ = found.shifts[0].shares
    assert first[0] == "f"


def test_without_a_bound_nothing_is_judged() -> None:
    counts = {("2026-01-05", OLD): drawn(5_000, 1), ("2026-02-05", OLD): drawn(5_000, 4, middle=0.9)}
    (found,) = compared(counts, bound=0.0)
    assert set(outcomes(found).values()) == {Outcome.REPORT_ONLY}
    assert found.shifts[1].value > 1


def test_each_release_is_compared_with_its_own_rows_and_a_new_one_with_all_but_not_judged() -> None:
    counts = {
        ("2026-01-05", OLD): drawn(5_000, 1),
        ("2026-01-06", NEW): drawn(FEWEST - 1, 2, middle=0.9),
        ("2026-02-05", OLD): drawn(2_000, 3),
        ("2026-02-06", NEW): drawn(5_000, 4, middle=0.9),
    }
    new, old = compared(counts)
    assert (new.release, new.same_release, new.baseline_rows) == (NEW, False, 5_000 + FEWEST - 1)
    assert set(outcomes(new).values()) == {Outcome.REPORT_ONLY}
    assert (old.release, old.same_release, old.baseline_rows) == (OLD, True, 5_000)
    assert set(outcomes(old).values()) == {Outcome.OK}


def test_too_few_rows_are_shown_and_not_judged() -> None:
    counts = {("2026-01-05", OLD): drawn(5_000, 1), ("2026-02-05", OLD): drawn(FEWEST - 1, 3, middle=0.9)}
    assert set(outcomes(compared(counts)[0]).values()) == {Outcome.REPORT_ONLY}


def test_embeddings_have_lengths_alone() -> None:
    def embedded(rows: Counts) -> Counts:
        return Counts(rows.rows, 0, lengths=rows.lengths)

    counts = {("2026-01-05", OLD): embedded(drawn(5_000, 1)), ("2026-02-05", OLD): embedded(drawn(2_000, 2))}
    (found,) = compared(counts)
    assert outcomes(found) == {"labels": Outcome.REPORT_ONLY, "scores": Outcome.REPORT_ONLY, "lengths": Outcome.OK}
    assert found.shifts[0].shares == ()


def test_ranges_hold_about_a_tenth_each_and_a_frequent_value_one_of_its_own() -> None:
    assert distributions.cut(Counter(dict.fromkeys(range(100), 7))) == list(range(0, 100, 10))[1:]
    assert distributions.binned(Counter({100: 95, 3: 5}), distributions.cut(Counter({100: 95, 3: 5})), 0.01) == {
        "below 1": 5,
        "from 1": 95,
    }
    assert distributions.binned(Counter({1: 5}), [], 1) == {"all": 5}


def test_the_default_baseline_is_the_oldest_committed_days_before_the_window() -> None:
    committed = [f"2026-01-{day:02}" for day in range(1, 32)] + ["2026-02-02", "2026-02-03"]
    assert distributions.window(7, "2026-02-03") == ("2026-01-28", "2026-02-03")
    assert distributions.default_baseline("2026-02-03", committed) == Span("2026-01-01", "2026-01-30", 30)
    assert distributions.default_baseline("2026-01-03", committed) == Span("2026-01-01", "2026-01-02", 2)
    assert distributions.default_baseline("2026-01-01", committed) is None
    assert distributions.span(("2026-01-30", "2026-02-02"), committed).committed == 3

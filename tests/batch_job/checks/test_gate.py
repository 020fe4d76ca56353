"""The gate's verdicts: what they let pass, to the number, and what a person may accept."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_job.checks import gate
from batch_job.run_record import Agreement, Outcome, Verdict

NAMES = [f"label {number}" for number in range(12)]
Rows = dict[str, int]
distributions = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 100_000), min_size=1)
#: Two days of 10,000 rows and two labels.
EVEN = {"a": 5_000, "b": 5_000}


def mixed(one: Rows, other: Rows, part: float) -> Rows:
    """A day that is drawn from `other` in this part, in as many rows as make rounding nothing."""
    total, others = sum(one.values()), sum(other.values())
    shares = {name: (1 - part) * one.get(name, 0) / total + part * other.get(name, 0) / others for name in one | other}
    return {name: round(share * 1e12) for name, share in shares.items()}


@given(distributions, st.integers(1, 50))
def test_the_index_of_equal_shares_is_nothing(day: Rows, times: int) -> None:
    assert gate.psi(day, {name: rows * times for name, rows in day.items()}) == pytest.approx(0, abs=1e-12)


@given(distributions, distributions)
def test_the_index_is_the_same_either_way_and_never_negative(one: Rows, other: Rows) -> None:
    assert gate.psi(one, other) == pytest.approx(gate.psi(other, one), abs=1e-12)
    assert gate.psi(one, other) >= 0


@given(distributions, distributions, st.floats(0, 1), st.floats(0, 1))
def test_the_index_grows_as_a_day_moves_away(one: Rows, other: Rows, first: float, second: float) -> None:
    near, far = sorted((first, second))
    assert gate.psi(mixed(one, other, near), one) <= gate.psi(mixed(one, other, far), one) + 1e-6


def test_a_label_that_comes_or_goes_is_no_landslide() -> None:
    """One row of a new label among ten thousand: without a floor its logarithm has no end."""
    assert gate.psi({**EVEN, "new": 1}, EVEN) < 1e-6
    assert gate.psi(EVEN, {**EVEN, "new": 1, "gone": 0}) < 1e-6


def test_days_of_one_distribution_pass_and_the_index_is_what_chance_makes_of_it() -> None:
    random = np.random.default_rng(7)
    names = [str(number) for number in range(40)]
    drawn = random.multinomial(1_500, random.dirichlet(np.full(40, 3.0)), 201).tolist()
    before, *days = (dict(zip(names, rows, strict=True)) for rows in drawn)
    found = [gate.labels(day, before, names, "d") for day in days]
    assert {verdict.outcome for verdict in found} == {Outcome.OK}
    expected = gate.expected_psi(before, days[0])
    assert expected == pytest.approx(39 * (1 / 1_500 + 1 / 1_500))
    assert 0.5 * expected < np.mean([verdict.value or 0 for verdict in found]) < 2 * expected


def shifted(rows: int, part: float) -> Rows:
    return {"a": round(rows * part), "b": rows - round(rows * part)}


@pytest.mark.parametrize(
    ("part", "outcome"),
    [(0.5, Outcome.OK), (0.64, Outcome.OK), (0.67, Outcome.WARN), (0.73, Outcome.WARN), (0.76, Outcome.FAIL)],
)
def test_labels_warn_and_fail_at_their_bounds(part: float, outcome: Outcome) -> None:
    verdict = gate.labels(shifted(10_000, part), EVEN, ["a", "b", "c"], "2026-01-13")
    assert verdict.outcome is outcome
    # Two labels: chance makes 2 × (2 - 1)(1/10,000 + 1/10,000) of it.
    assert verdict.bound == "warn > 0.100, fail > 0.250"
    assert verdict.value == pytest.approx((part - 0.5) * math.log(part / (1 - part)))


def test_few_rows_have_wider_bounds_and_very_few_none() -> None:
    names = [str(number) for number in range(77)]
    day = dict.fromkeys(names, 14)
    assert gate.labels(day, day, names, "d").bound == "warn > 0.382, fail > 0.532"
    for now, before in ((shifted(999, 0.99), EVEN), (EVEN, shifted(999, 0.99)), ({}, EVEN)):
        verdict = gate.labels(now, before, ["a", "b"], "d")
        assert verdict.outcome is Outcome.REPORT_ONLY
    assert gate.labels(shifted(1_000, 0.99), EVEN, ["a", "b"], "d").outcome is Outcome.FAIL


def test_without_a_day_of_the_same_labels_labels_are_only_reported() -> None:
    first = gate.labels(EVEN, {}, ["a", "b"], "")
    assert (first.outcome, first.line) == (Outcome.REPORT_ONLY, gate.NO_EARLIER_DAY)
    verdict = gate.labels(EVEN, {"x": 10_000}, ["a", "b"], "2026-01-13")
    assert (verdict.outcome, verdict.line) == (Outcome.REPORT_ONLY, "ds=2026-01-13 has other labels, x for one")


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        ((300, 290, 290, 10), Outcome.OK),
        ((300, 290, 290, 9), Outcome.FAIL),
        ((300, 290, 289, 10), Outcome.FAIL),
        ((300, 290, 289, 11), Outcome.FAIL),
        ((0, 0, 0, 0), Outcome.OK),
    ],
)
def test_counts_must_reconcile(facts: tuple[int, int, int, int], outcome: Outcome) -> None:
    assert gate.counts(*facts).outcome is outcome


def test_one_number_that_is_none_fails() -> None:
    assert gate.finite(10_000, 0).outcome is Outcome.OK
    assert gate.finite(10_000, 1).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("agreement", "outcome"),
    [
        (Agreement(2_000, 1_800, 1_000, 985), Outcome.OK),
        (Agreement(2_000, 1_990, 1_000, 984), Outcome.FAIL),
        (Agreement(2_000, 100, 400, 394), Outcome.OK),
        (Agreement(2_000, 100, 399, 100), Outcome.REPORT_ONLY),
        (Agreement(999, 100, 900, 100), Outcome.REPORT_ONLY),
        (Agreement(1_000, 900, 900, 100), Outcome.FAIL),
        (Agreement(0, 0, 0, 0), Outcome.REPORT_ONLY),
        (None, Outcome.UNPROVEN),
    ],
)
def test_int8_must_say_the_same_where_half_precision_is_clear(agreement: Agreement | None, outcome: Outcome) -> None:
    assert gate.clear_agreement(agreement).outcome is outcome


@pytest.mark.parametrize(
    ("agreeing", "before", "outcome"),
    [(1_800, 0.93, Outcome.OK), (1_799, 0.93, Outcome.FAIL), (1_999, 0.93, Outcome.OK), (2, None, Outcome.REPORT_ONLY)],
)
def test_agreement_must_not_fall_by_more_than_three_points(
    agreeing: int, before: float | None, outcome: Outcome
) -> None:
    assert gate.agreement_drop(Agreement(2_000, agreeing, 0, 0), before, "d").outcome is outcome


def test_a_first_day_has_no_agreement_to_fall_from_and_says_so() -> None:
    first, unmeasured = (gate.agreement_drop(Agreement(2_000, 1_000, 0, 0), None, ds) for ds in ("", "2026-01-13"))
    assert first.outcome is unmeasured.outcome is Outcome.REPORT_ONLY
    assert first.line.endswith(f"texts; {gate.NO_EARLIER_DAY}")
    assert unmeasured.line.endswith("texts; it is not known of ds=2026-01-13")


def test_a_refusal_says_what_the_index_is() -> None:
    verdict = gate.labels(shifted(10_000, 0.99), EVEN, ["a", "b"], "2026-01-13")
    what = "PSI (population stability index: how far the distribution of labels has moved) "
    assert what in gate.refusal("2026-01-14", [verdict])


def test_a_small_sample_does_not_fail_for_a_fall() -> None:
    assert gate.agreement_drop(Agreement(999, 1, 0, 0), 0.99, "d").outcome is Outcome.REPORT_ONLY
    assert gate.agreement_drop(None, 0.99, "d").outcome is Outcome.UNPROVEN


def failed(name: str) -> Verdict:
    return Verdict(name, Outcome.FAIL, 1.0, "at most 0", f"{name} is wrong")


ALL = [failed(name) for name in (gate.COUNTS, gate.FINITE, *gate.ACCEPTABLE)]


def test_every_failed_gate_is_named_in_one_line_with_what_to_do() -> None:
    line = gate.refusal(
        "2026-01-14", [failed(gate.LABELS), Verdict("counts", Outcome.OK, 0, "", "fine"), failed(gate.CLEAR)]
    )
    assert line == (
        "ds=2026-01-14: refused by the gate, nothing committed: labels: labels is wrong (at most 0); "
        "agreement: agreement is wrong (at most 0); if that is as it should be, "
        "`python -m batch_job commit --ds 2026-01-14 --accept labels --accept agreement`"
    )


@given(st.sets(st.sampled_from([verdict.gate for verdict in ALL])))
def test_what_a_person_accepts_passes_but_never_counts_or_numbers(accepted: set[str]) -> None:
    judged = gate.accept(ALL, accepted)
    assert {verdict.gate for verdict in judged if verdict.accepted} == accepted & set(gate.ACCEPTABLE)
    assert {verdict.gate for verdict in judged if verdict.refuses} == {it.gate for it in ALL} - (
        accepted & set(gate.ACCEPTABLE)
    )
    assert gate.refusal("d", judged) != ""


@given(st.lists(st.sampled_from(ALL), unique=True))
def test_a_person_is_asked_only_where_accepting_lets_the_day_pass(refusing: list[Verdict]) -> None:
    asked = gate.acceptable(refusing)
    assert bool(asked) == (bool(refusing) and not {it.gate for it in refusing} & {gate.COUNTS, gate.FINITE})
    if asked:
        assert gate.refusal("d", gate.accept(refusing, asked)) == ""
    assert ("`python -m batch_job commit --ds d --accept " in gate.refusal("d", refusing)) == bool(asked)


def test_only_a_failure_is_accepted() -> None:
    warned = Verdict(gate.LABELS, Outcome.WARN, 0.2, "", "")
    assert gate.accept([warned], gate.ACCEPTABLE) == (warned,)
    assert gate.refusal("d", [warned]) == ""

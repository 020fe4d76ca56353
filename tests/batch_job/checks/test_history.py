"""Which day a partition is held against, and what the table still knows of it."""

from pathlib import Path

from batch_job.checks import history
from batch_job.checks.history import Day
from batch_job.run_record import ARCHIVE, Agreement, Findings
from batch_job.tables import table
from tests.batch_job.shards import written

DAYS = ("2026-01-12", "2026-01-13", "2026-01-15")


def findings(agreement: Agreement | None) -> Findings:
    return Findings(rows=0, labels={}, lengths=(), agreement=agreement)


def test_a_table_that_is_not_there_or_holds_no_other_day_has_none(tmp_path: Path) -> None:
    assert history.last_day(tmp_path / "none", "2026-01-14") == Day()
    written.commit(tmp_path, "2026-01-14", ["yes"])
    assert history.last_day(tmp_path, "2026-01-14") == Day()


def test_the_nearest_earlier_day_counts_and_no_later_one(tmp_path: Path) -> None:
    for number, ds in enumerate(DAYS):
        written.commit(tmp_path, ds, ["yes"] * (number + 1) + ["no"])
    assert history.last_day(tmp_path, "2026-01-14") == Day("2026-01-13", {"yes": 2, "no": 1})
    assert history.last_day(tmp_path, "2026-01-13").ds == "2026-01-12"
    assert history.last_day(tmp_path, "2026-01-12") == Day()
    assert history.last_day(tmp_path, "2026-02-01").ds == "2026-01-15"


def test_days_of_another_input_in_the_table_are_no_history(tmp_path: Path) -> None:
    """Two inputs under one TANDEM_SCORES; a day whose commit names none was written before commits did."""
    for ds, said in (
        ("2026-01-10", {}),
        ("2026-01-11", {table.INPUT: "/mine/ds={ds}"}),
        ("2026-01-12", {table.INPUT: ARCHIVE}),
        ("2026-01-16", {table.INPUT: ARCHIVE}),
    ):
        written.commit(tmp_path, ds, ["yes"], **said)
    assert history.last_day(tmp_path, "2026-01-14", "/mine/ds={ds}").ds == "2026-01-11"
    assert history.last_day(tmp_path, "2026-01-14").ds == "2026-01-12"
    assert history.last_day(tmp_path, "2026-01-11", "/mine/ds={ds}").ds == "2026-01-10"
    assert history.newer_day(tmp_path, "2026-01-14", "/mine/ds={ds}") == ""
    assert history.newer_day(tmp_path, "2026-01-14") == "2026-01-16"
    # Scored again by a version that does not say.
    written.commit(tmp_path, "2026-01-12", ["no"], token=2)
    assert history.last_day(tmp_path, "2026-01-14", "/mine/ds={ds}").ds == "2026-01-12"


def test_a_day_without_rows_is_passed_over(tmp_path: Path) -> None:
    written.commit(tmp_path, "2026-01-12", ["yes"])
    written.commit(tmp_path, "2026-01-13", [])
    assert history.last_day(tmp_path, "2026-01-14").ds == "2026-01-12"


def test_rows_that_were_replaced_do_not_count_nor_does_what_their_commit_said(tmp_path: Path) -> None:
    early, later = (history.facts(findings(Agreement(2_000, agreeing, 0, 0))) for agreeing in (1_000, 1_900))
    written.commit(tmp_path, "2026-01-13", ["yes"] * 5, token=1, **early)
    written.commit(tmp_path, "2026-01-13", ["no"] * 3, token=2, **later)
    written.commit(tmp_path, "2026-01-12", ["no"] * 3, **history.facts(findings(None)))
    assert history.last_day(tmp_path, "2026-01-14") == Day("2026-01-13", {"no": 3}, 0.95)
    # Of that day nothing was measured.
    assert history.last_day(tmp_path, "2026-01-13") == Day("2026-01-12", {"no": 3}, None)


def test_answers_to_deferred_requests_are_no_messages(tmp_path: Path) -> None:
    written.commit(tmp_path, "2026-01-13", ["yes"])
    for ds in ("2026-01-13", "2026-01-14"):
        answers = written.file(tmp_path, written.batch(["a"], ["no"]), ds=ds, source="deferred")
        table.add_deferred(tmp_path, ds, lambda _, answers=answers: answers)  # type: ignore[misc]
    assert history.last_day(tmp_path, "2026-01-15") == Day("2026-01-13", {"yes": 1})


def test_nothing_measured_is_not_no_agreement() -> None:
    assert history.facts(findings(Agreement(0, 0, 0, 0))) == {"tandem.agreement": ""}

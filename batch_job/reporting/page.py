"""The report as a page: templates/page.html has its structure, this module has its words and figures."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from batch_job.reporting import charts, drift_figures, plain_text
from batch_job.reporting.cost import cost_per_million
from batch_job.run_record import LENGTH_STEP, Findings, RunRecord, Scoring, Verdict

#: Gates and verdicts, one sentence each.
TERMS = {
    "counts": "Every line of the input is a scored row or a quarantined line, and is counted once.",
    "finite": "Every score is a finite number.",
    "quarantine": "The share of lines that could not be read as messages, or not be scored.",
    "labels": "The label shift: the population stability index (PSI) of the labels' shares against the day before. "
    "0 is no change; the bounds allow for what chance makes of so few rows.",
    "agreement": "Of the texts of which half precision is sure, the share to which INT8, the faster arithmetic, gives "
    "the same label.",
    "agreement-drop": "On how many of 100 texts more, or fewer, than the day before INT8 and half precision give the "
    "same label.",
    "report-only": "There is too little to judge by, or nothing to compare with: shown, and refuses nothing.",
    "unproven": "It could not be measured; it refuses nothing.",
    "warn": "Unusual, and not enough to refuse the day.",
    "fail": "The day is refused, unless a person accepted it.",
}
#: Characters that neither HTML nor SVG can hold, even escaped.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

#: Of every page.
TEMPLATES = Environment(
    loader=PackageLoader(__package__),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["figure"] = format
TEMPLATES.globals.update(
    page=sys.modules[__name__], plain_text=plain_text, charts=charts, drift=drift_figures, length_step=LENGTH_STEP
)


def html(run: RunRecord, price_per_hour: float, currency: str = "USD", previous: str = "", release: str = "") -> str:
    """The whole page, for one run in any state. `previous` and `release`: links to the report of the day before and to
    the release's, empty without one."""
    before = run.findings.before if run.findings else ""
    links = [(f"report of {before}", previous), (f"report of release {run.release}", release)]
    page = TEMPLATES.get_template("page.html").render(
        run=run, price_per_hour=price_per_hour, currency=currency, links=[it for it in links if it[1]]
    )
    return printable(page)


def printable(text: str) -> str:
    return _UNPRINTABLE.sub("\ufffd", text)


def first(run: RunRecord) -> Iterator[tuple[str, str]]:
    """The answers to a reader's first questions."""
    if run.scoring:
        yield "scored", f"{run.scoring.rows:,} of {run.input.lines:,} lines, committed"
    else:
        yield "scored", f"nothing is committed; {run.input.lines:,} lines were planned"
    reasons = run.scoring.quarantined if run.scoring else run.findings.quarantined if run.findings else {}
    yield "quarantined", quarantined(reasons, run.input.lines)
    shifts = [it for it in run.findings.verdicts if it.gate == "labels"] if run.findings else []
    yield "label shift", f"{outcome(shifts[0])}: {shifts[0].line}" if shifts else "not measured"
    if run.approval:
        yield "accepted", plain_text.accepted(run.approval)
    yield "online", plain_text.publication(run)


def quarantined(reasons: Mapping[str, int], lines: int) -> str:
    count = sum(reasons.values())
    if not count:
        return "no line"
    named = plain_text.counts(reasons)
    return f"{count:,} of {lines:,} lines ({count / lines:.2%}): {named}" if lines else f"{count:,} lines: {named}"


def outcome(verdict: Verdict) -> str:
    return f"{verdict.outcome}{', accepted' if verdict.accepted else ''}"


def value(verdict: Verdict) -> str:
    """The measured value with its unit, and its sign in words."""
    if verdict.value is None:
        return "–"
    if verdict.gate in ("agreement", "quarantine"):
        return f"{verdict.value:.2%}"
    if verdict.gate == "agreement-drop":
        return f"{abs(verdict.value):.1f} points {'fewer' if verdict.value > 0 else 'more'}"
    return f"{'PSI ' if verdict.gate == 'labels' else ''}{verdict.value:,.4g}"


def terms(verdicts: Sequence[Verdict]) -> list[tuple[str, str]]:
    """The gates and verdicts of this page, explained."""
    used = {str(verdict.outcome) for verdict in verdicts} | {verdict.gate for verdict in verdicts}
    return [(term, meaning) for term, meaning in TERMS.items() if term in used]


def shares(findings: Findings) -> list[tuple[Any, ...]]:
    """Each label's share of the rows and, where there is a day before, of that day's; the most frequent first."""
    days = [it for it in (findings.labels, findings.labels_before) if it]
    totals = [(day, sum(day.values()) or 1) for day in days] if findings.labels else []
    labels = sorted({label for day, _ in totals for label in day})
    rows = [(label, *(day.get(label, 0) / total for day, total in totals)) for label in labels]
    return sorted(rows, key=lambda row: -max(row[1:]))


def speeds(scoring: Scoring, price_per_hour: float, currency: str) -> Iterator[tuple[str, str]]:
    rate = scoring.rows_per_second
    if scoring.computed:
        yield "scoring alone", f"{scoring.scored_per_second:,.0f} rows/s in {scoring.precision}"
        yield "from reading to commit", f"{rate:,.0f} rows/s"
        yield "time", f"{moment(scoring.began_at)} to {moment(scoring.finished_at)}"
    else:
        yield "speed", plain_text.speed(scoring)
    if scoring.computed and rate:
        cost = cost_per_million(price_per_hour, rate)
        yield "a million messages", f"{cost:,.2f} {currency}, at {price_per_hour:,.2f} {currency} per hour"
    yield "taken over", plain_text.spared(scoring)


def details(run: RunRecord) -> Iterator[tuple[str, str]]:
    """Facts for insiders; those without a value are not shown."""
    yield "run", run.run_id
    yield "planned", moment(run.planned_at)
    yield "release", run.release
    yield "input", f"{plain_text.source(run.input)}; {run.input.identity}"
    yield "deferred requests answered", f"{run.drained:,}"
    if not (scoring := run.scoring):
        return
    yield "table version", f"{scoring.table_version}, attempt {scoring.token}"
    yield "plan", scoring.plan_id
    yield "content hash", scoring.content
    if scoring.computed:
        yield "tokens", f"{plain_text.tokens(scoring)}; {scoring.padding_share:.1%} of all run is padding"
        yield "rows run", f"{scoring.distinct:,}: texts that are the same are run once"
        yield "devices", plain_text.busy(scoring)


def moment(iso: str) -> str:
    """A moment in UTC, as people write it; text that is no moment as it is."""
    try:
        return f"{datetime.fromisoformat(iso).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return iso or "unknown"

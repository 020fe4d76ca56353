"""What the page says of a run in words: figures with their meaning, and terms that it uses."""

from collections.abc import Mapping
from datetime import UTC, datetime

from batch_job.run_record import Findings, RunRecord, Verdict

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
_SHARES = ("agreement", "quarantine")


def value(verdict: Verdict) -> str:
    """What a gate measured, with its sign in words."""
    if verdict.value is None:
        return "–"
    if verdict.gate in _SHARES:
        return f"{verdict.value:.2%}"
    if verdict.gate == "agreement-drop":
        return f"{abs(verdict.value):.1f} points {'fewer' if verdict.value > 0 else 'more'}"
    return f"{'PSI ' if verdict.gate == 'labels' else ''}{verdict.value:,.4g}"


def scored(run: RunRecord) -> str:
    if run.scoring:
        return f"{run.scoring.rows:,} of {run.input.lines:,} lines, committed"
    return f"nothing is committed; {run.input.lines:,} lines were planned"


def quarantined(reasons: Mapping[str, int], lines: int) -> str:
    count = sum(reasons.values())
    if not count:
        return "no line"
    by_frequency = sorted(reasons.items(), key=lambda it: (-it[1], it[0]))
    named = ", ".join(f"{reason} {found:,}" for reason, found in by_frequency)
    return f"{count:,} of {lines:,} lines ({count / lines:.2%}): {named}" if lines else f"{count:,} lines: {named}"


def label_shift(findings: Findings | None) -> str:
    """What the gate says of the labels, and whether it lets them pass."""
    verdicts = [verdict for verdict in findings.verdicts if verdict.gate == "labels"] if findings else []
    if not verdicts:
        return "not measured"
    verdict = verdicts[0]
    return f"{verdict.outcome}{', accepted' if verdict.accepted else ''}: {verdict.line}"


def moment(iso: str) -> str:
    """A moment as a person reads it, in UTC; whatever is none as it is."""
    try:
        return f"{datetime.fromisoformat(iso).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return iso or "unknown"

"""How far the distributions of a window have moved against a baseline. Pure functions of counts."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from datetime import date, timedelta
from itertools import pairwise

from batch_job.checks.gate import FEWEST, expected_psi, psi
from batch_job.reporting.drift_figures import Comparison, Shift, Span
from batch_job.run_record import Outcome
from batch_job.tables.counting import HUNDREDTH, Counts, Key

#: Ranges into which the baseline's numbers are cut.
_PARTS = 10
#: Most days of the default baseline.
BASELINE_DAYS = 30


def window(days: int, last: str) -> tuple[str, str]:
    """First and last of so many days."""
    return str(date.fromisoformat(last) - timedelta(days=days - 1)), last


def span(days: tuple[str, str], committed: list[str]) -> Span:
    first, last = days
    return Span(first, last, sum(first <= day <= last for day in committed))


def default_baseline(before: str, committed: list[str]) -> Span | None:
    """The oldest committed days before a window; None without any."""
    oldest = [day for day in committed if day < before][:BASELINE_DAYS]
    return Span(oldest[0], oldest[-1], len(oldest)) if oldest else None


def compare(of: Span, against: Span, counts: Mapping[Key, Counts], bound: float) -> list[Comparison]:
    """The window by release, each against the rows of the baseline that the same release scored, where it scored
    enough to compare with, else against all. `bound`: 0 for none."""
    now, before = _by_release(of, counts), _by_release(against, counts)
    whole = Counts()
    for each in before.values():
        whole.add(each)
    found = []
    for release, rows in sorted(now.items(), key=lambda it: -it[1].rows):
        same = release in before and before[release].rows >= FEWEST
        base = before[release] if same else whole
        judged = bool(bound) and same and rows.rows >= FEWEST
        shifts = [_shift(name, a, b, bound, judged) for name, a, b in _distributions(rows, base)]
        cut = _share(rows.truncated, rows.rows), _share(base.truncated, base.rows)
        found.append(Comparison(of, against, release, rows.rows, base.rows, same, cut, tuple(shifts)))
    return found


def _by_release(days: Span, counts: Mapping[Key, Counts]) -> dict[str, Counts]:
    found: dict[str, Counts] = {}
    for (ds, release), each in counts.items():
        if days.first <= ds <= days.last:
            found.setdefault(release, Counts()).add(each)
    return found


def _distributions(now: Counts, before: Counts) -> list[tuple[str, dict[str, int], dict[str, int]]]:
    scores, lengths = cut(before.scores), cut(before.lengths)
    return [
        ("labels", dict(now.labels), dict(before.labels)),
        ("scores", binned(now.scores, scores, HUNDREDTH), binned(before.scores, scores, HUNDREDTH)),
        ("lengths", binned(now.lengths, lengths, 1), binned(before.lengths, lengths, 1)),
    ]


def _shift(name: str, now: dict[str, int], before: dict[str, int], bound: float, judged: bool) -> Shift:
    rows, rows_before = sum(now.values()), sum(before.values())
    value, noise = (psi(now, before), 2 * expected_psi(now, before)) if rows and rows_before else (0.0, 0.0)
    outcome = Outcome.REPORT_ONLY
    if judged and rows:
        outcome = Outcome.FAIL if value > bound + noise else Outcome.OK
    both = {it: (_share(now.get(it, 0), rows), _share(before.get(it, 0), rows_before)) for it in {**before, **now}}
    shares = [(it, *pair) for it, pair in both.items() if any(pair)]
    if name == "labels":
        shares.sort(key=lambda row: (-max(row[1:]), row[0]))
    return Shift(name, value, noise, outcome, tuple(shares))


def cut(values: Counter[int]) -> list[int]:
    """Where ranges begin, the first one left out: each holds a tenth of the rows or little more, and a value that has
    as many is not mixed with smaller ones."""
    begins, held, part = list[int](), 0, sum(values.values()) / _PARTS
    for value in sorted(values):
        if held >= part or (held and values[value] >= part):
            begins.append(value)
            held = 0
        held += values[value]
    return begins


def binned(values: Counter[int], begins: list[int], unit: float) -> dict[str, int]:
    """Rows by range, in order. `unit`: of the values."""
    names = [f"below {begins[0] * unit:g}"] if begins else ["all"]
    names += [f"{a * unit:g} to {b * unit:g}" for a, b in pairwise(begins)]
    names += [f"from {begins[-1] * unit:g}"] if begins else []
    rows = dict.fromkeys(names, 0)
    for value, count in values.items():
        rows[names[bisect_right(begins, value)]] += count
    return rows


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0

"""The `drift` step: distributions of committed scores in windows of days against a baseline. No JVM."""

import argparse
from itertools import chain

from deltalake import DeltaTable

from batch_job import identity, lookup
from batch_job.checks import distributions
from batch_job.identity import Tables
from batch_job.inputs.delta import find_table
from batch_job.reporting import drift_figures, drift_page
from batch_job.reporting.drift_figures import DriftReport, Span
from batch_job.settings import DriftSettings
from batch_job.tables import counting
from shared_model import settings
from shared_model.errors import JobError, Refused
from shared_model.objects import Location, join, located
from shared_model.settings import StateSettings

#: Days of each window, unless some are asked for.
WINDOWS = (7, 30)


def run(args: argparse.Namespace, state: StateSettings) -> None:
    """Raises: Refused where a distribution has moved beyond the configured bound; JobError."""
    for day in filter(None, (args.first, args.to)):
        lookup.check_day(day)
    wanted = identity.configured_input(state)
    tables = Tables.for_input(state, wanted)
    table = find_table(tables.scores)
    committed = counting.days(table) if table else []
    if not table or not committed:
        raise JobError(f"{tables.scores} holds no committed day of {identity.describe(state, wanted)}; score one first")
    last = args.to or committed[-1]
    lengths = [distributions.window(days, last) for days in args.days or WINDOWS]
    windows = [(args.first, last)] if args.first else lengths
    report = measure(table, wanted, [distributions.span(it, committed) for it in windows], committed)
    page = drift_page.write(folder(tables, last), report)
    for line in [*drift_figures.lines(report), f"page {page}"]:
        print(line)
    if report.failures:
        raise Refused(f"beyond TANDEM_DRIFT_BOUND={report.bound:g}: {'; '.join(report.failures)}; page {page}")


def measure(table: DeltaTable, wanted: str, windows: list[Span], committed: list[str]) -> DriftReport:
    """Raises: JobError for a window that ends before it begins, and for a damaged file."""
    chosen = settings.load(DriftSettings)
    pairs, unmeasured = list[tuple[Span, Span]](), list[str]()
    for window in windows:
        baseline = chosen.baseline
        against = (
            distributions.span(baseline, committed)
            if baseline
            else distributions.default_baseline(window.first, committed)
        )
        if window.first > window.last:
            raise JobError(f"--from {window.first} is after --to {window.last}")
        if not window.committed or not against or not against.committed:
            lacking = "no day of it is committed" if not window.committed else "no committed day is in its baseline"
            unmeasured.append(f"{window}: not compared: {lacking}")
        else:
            pairs.append((window, against))
    days = {day for day in committed for it in chain(*pairs) if it.first <= day <= it.last}
    counts = counting.count(table, days)
    found = chain(*(distributions.compare(window, against, counts, chosen.drift_bound) for window, against in pairs))
    return DriftReport(wanted, chosen.drift_bound, tuple(found), tuple(unmeasured))


def folder(tables: Tables, last: str) -> Location:
    """Beside the tables of the input."""
    return join(located(str(tables.quarantine).rpartition("/")[0]), "drift", last)

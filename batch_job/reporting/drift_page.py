"""The report of drift: a page for people, whose structure templates/drift.html has, and a document for programs."""

import dataclasses
import json

from batch_job.reporting.drift_figures import DriftReport
from batch_job.reporting.page import TEMPLATES, printable
from shared_model import objects
from shared_model.errors import JobError
from shared_model.objects import Location, join

PAGE, DOCUMENT = "drift.html", "drift.json"

#: One sentence for each distribution and verdict.
TERMS = {
    "labels": "Shares of the best labels.",
    "scores": "Scores of the best labels, in ranges that each hold about a tenth of the baseline's rows.",
    "lengths": "Tokens of a text as the model reads it (the column tokens of the scores table, which holds no texts), "
    "in ranges of a tenth of the baseline's rows. A text that was cut counts with what was left of it.",
    "PSI": "Population stability index: 0 where all shares are equal; 0.1 is a small move, 0.25 a large one.",
    "noise": "Twice the index that two samples of so many rows from one distribution have on average. It takes rows "
    "as independent: days that differ by weekday move more.",
    "report-only": "Shown, and fails nothing: there is no bound (TANDEM_DRIFT_BOUND), too few rows, or the baseline "
    "was scored by other releases, so that a move may be theirs.",
    "ok": "Within the bound and noise.",
    "fail": "Beyond the bound and noise.",
}
VERDICTS = ("report-only", "ok", "fail")
#: Most bars of a plot.
SHOWN = 20


def write(folder: Location, report: DriftReport) -> Location:
    """Write both; returns the page's place. Raises: JobError."""
    document = {"failures": report.failures, **dataclasses.asdict(report)}
    for name, text in ((DOCUMENT, f"{json.dumps(document, indent=1)}\n"), (PAGE, html(report))):
        try:
            objects.put(join(folder, name), text.encode("utf-8", "replace"))
        except OSError as error:
            raise JobError(f"{join(folder, name)} could not be written: {error.strerror or error}") from error
    return join(folder, PAGE)


def html(report: DriftReport) -> str:
    outcomes = {str(shift.outcome) for it in report.comparisons for shift in it.shifts}
    terms = [(it, said) for it, said in TERMS.items() if it not in VERDICTS or it in outcomes]
    return printable(TEMPLATES.get_template("drift.html").render(report=report, terms=terms, shown=SHOWN))

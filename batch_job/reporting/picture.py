"""The plot of a run's labels as a file of its own, for pages of others that show it beside their own words."""

from markupsafe import Markup

from batch_job.reporting import charts
from batch_job.reporting.page import TEMPLATES, printable, shares
from batch_job.run_record import RunRecord

#: Labels that are drawn, the most frequent.
_MOST = 20
#: The style of an SVG that no page surrounds: its own size, on paper.
_ALONE = "svg { width: auto; min-width: 0; background: var(--paper) }"


def labels(run: RunRecord) -> str:
    """An SVG file; empty where the run counted no labels."""
    rows = shares(run.findings)[:_MOST] if run.findings else []
    if not rows:
        return ""
    drawn = charts.bars("Labels against the day before", rows, "{:.1%}")
    style = Markup("<style>{}</style>").format(Markup(TEMPLATES.get_template("page.css").render() + _ALONE))  # noqa: S704 (our own file)
    opened, closed, rest = drawn.partition(">")
    return printable(f'{opened} xmlns="http://www.w3.org/2000/svg" width="720"{closed}{style}{rest}')

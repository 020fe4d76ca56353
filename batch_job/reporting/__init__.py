"""A run's report: a page for people and a document for programs, both made from the run's record alone.

They are beside the record, RUN/report.html and RUN/report.json for RUN.json. The page is one self-contained file.
"""

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from batch_job.reporting.cost import cost_per_million
from batch_job.run_record import LENGTH_STEP, RecordError, RunRecord, read
from shared_model import objects
from shared_model.errors import JobError
from shared_model.objects import Location, is_url, join, located, open_objects

_PAGE = "report.html"
_PAGE_PATH = re.compile(rf"([^/]+)/{re.escape(_PAGE)}")


def write(
    record: Location, run: RunRecord, price_per_hour: float, currency: str = "USD", releases: str = ""
) -> tuple[Location, Location]:
    """Write both, each in one rename; returns their paths. `price_per_hour`: of the machines, in `currency`.
    `releases`: the folder or URL of all releases, whose reports the page names.

    Raises: JobError naming what could not be written.
    """
    # Jinja2 and pygal: other steps and programs that import this package do without them.
    from batch_job.reporting import page

    links = _previous(record, run), _release_report(releases, run.release)
    html = _replace(page_of(record), page.html(run, price_per_hour, currency, *links))
    figures = json.dumps(document(run, price_per_hour, currency), indent=1)
    return html, _replace(join(_folder(record), "report.json"), f"{figures}\n")


def document(run: RunRecord, price_per_hour: float, currency: str = "USD") -> dict[str, Any]:
    """The record, and figures derived from it."""
    scoring = run.scoring
    rate = scoring.rows_per_second if scoring else 0.0
    derived = {
        "price_per_hour": price_per_hour,
        "price_currency": currency,
        "cost_per_million": cost_per_million(price_per_hour, rate) if rate else None,
        "tokens_per_second": round(scoring.tokens_per_second, 1) if scoring and scoring.seconds else None,
        "busy_share": round(scoring.busy_share, 4) if scoring and scoring.busy_share is not None else None,
        "length_step": LENGTH_STEP,
    }
    return {**dataclasses.asdict(run), **derived}


def page_of(record: Location) -> Location:
    """Where the page of a run's report is."""
    return join(_folder(record), _PAGE)


def _previous(record: Location, run: RunRecord) -> str:
    """A relative link to the newest report of the day that this one is compared with; empty without one. Days are
    compared with those of the same input."""
    before = run.findings.before if run.findings else ""
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", before):
        return ""
    day = join(located(str(record).rsplit("/", 2)[0]), before)
    pages = {it.path: it.modified for it in open_objects(day).list()}
    there = [page for path in pages if (page := _PAGE_PATH.fullmatch(path))]
    of_input = [page for page in there if _identity(join(day, f"{page[1]}.json")) == run.input.identity]
    newest = max(of_input, key=lambda page: pages[page[0]], default=None)
    return f"../../{before}/{quote(os.fsencode(newest[1]), safe='')}/{_PAGE}" if newest else ""


def _folder(record: Location) -> Location:
    """Of a run's report."""
    return located(str(record).removesuffix(".json"))


def _identity(record: Location) -> str:
    """The input of another run; empty where its record cannot be read, which is for its own steps to report."""
    try:
        return read(record).input.identity
    except RecordError:
        return ""


def _release_report(releases: str, release: str) -> str:
    """A link to the release's own report; empty where that is not a file of this host."""
    # It brings numpy, and steps that print a run do without it.
    from shared_model.releases import manifest

    if not releases or is_url(releases) or not manifest.is_id(release):
        return ""
    path = Path(releases, manifest.name_of(release), release, "report.md").absolute()
    return path.as_uri() if path.exists() else ""


def _replace(path: Location, text: str) -> Location:
    try:
        objects.put(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise JobError(f"{path} could not be written: {error.strerror}; make room, then run `report` again") from error
    return path

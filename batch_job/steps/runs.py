"""The `runs` step: a line for each run record. No JVM."""

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from batch_job import lookup, run_record
from batch_job.lookup import RecordFile
from batch_job.reporting.cost import cost_per_million
from batch_job.run_record import Outcome, RecordError, RunRecord, Verdict
from batch_job.settings import NightlySettings
from shared_model import settings
from shared_model.errors import JobError, ReleaseError
from shared_model.objects import Location, join
from shared_model.releases import manifest
from shared_model.settings import StateSettings

#: Columns of the list of runs; the last may be long.
_COLUMNS = ("day", "run", "status", "rows", "quarantined", "planned", "input", "verdict")
#: Further keys of a document; of a run that scored nothing, or whose record cannot be read, null.
_MORE = ("model", "release", "rows_per_second", "cost_per_million", "gates", "waits")
_SHOWN = (Outcome.WARN, Outcome.FAIL, Outcome.UNPROVEN)


def run(args: argparse.Namespace, state: StateSettings) -> None:
    if args.ds:
        lookup.check_day(args.ds)
    price = settings.load(NightlySettings).price_per_hour
    for line in runs(state.runs_dir, args.ds, args.limit, args.json, price):
        print(line)


def runs(folder: Location, ds: str, limit: int, as_json: bool, price_per_hour: float = 0.0) -> Iterator[str]:
    """Up to `limit` runs, 0 for all, the newest first: of one day, or of all where `ds` is empty. The records that
    changed last are read, and no more: a store holds years of them.

    Raises: JobError without any run.
    """
    files = lookup.record_files(folder, ds)[: limit or None]
    shown = sorted((_run(file, price_per_hour) for file in files), key=lambda run: run["planned"], reverse=True)
    if not shown:
        where = join(folder, ds) if ds else folder
        raise JobError(f"{where} holds no run; run `python -m batch_job plan` first, or check TANDEM_STATE")
    if as_json:
        return map(json.dumps, shown)
    cells = [_COLUMNS, *(tuple(_cell(run[column]) for column in _COLUMNS) for run in shown)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    # The last column is not padded.
    widths[-1] = 0
    return ("  ".join(map(str.ljust, row, widths)) for row in cells)


def _run(file: RecordFile, price_per_hour: float) -> dict[str, Any]:
    try:
        run = run_record.read(file.path)
    except RecordError as error:
        changed = file.modified.isoformat(timespec="seconds")
        unknown = dict.fromkeys((*_COLUMNS, *_MORE))
        known = {"day": file.day, "run": file.run_id, "status": "unreadable"}
        return {**unknown, **known, "planned": changed, "verdict": str(error)}
    rows = run.scoring.rows if run.scoring else None
    reasons = run.scoring.quarantined if run.scoring else run.findings.quarantined if run.findings else None
    verdict = run.problem or _verdict(run.findings.verdicts if run.findings else ())
    count = sum(reasons.values()) if reasons is not None else None
    values = (run.ds, run.run_id, str(run.state), rows, count, run.planned_at, run.input.folder, verdict)
    return {**dict(zip(_COLUMNS, values, strict=True)), **_more(run, price_per_hour)}


def _more(run: RunRecord, price_per_hour: float) -> dict[str, Any]:
    rate = run.scoring.rows_per_second if run.scoring else 0.0
    verdicts = run.findings.verdicts if run.findings else ()
    gates = [{"gate": it.gate, "outcome": it.outcome, "accepted": it.accepted} for it in verdicts]
    cost = cost_per_million(price_per_hour, rate) if rate else None
    values = (_model(run.release), run.release, rate or None, cost, gates, run.waits)
    return dict(zip(_MORE, values, strict=True))


def _model(release: str) -> str:
    """The model of a release; what the record holds where that is no release's id."""
    try:
        return manifest.name_of(release)
    except ReleaseError:
        return release


def _verdict(verdicts: Sequence[Verdict]) -> str:
    """The gates that did not pass plainly; empty before any gate has judged."""
    texts = [f"{it.gate} {it.outcome}{' (accepted)' if it.accepted else ''}" for it in verdicts]
    worth = [text for text, it in zip(texts, verdicts, strict=True) if it.outcome in _SHOWN]
    return ", ".join(worth) or ("ok" if verdicts else "")


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value or "-")

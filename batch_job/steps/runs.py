"""The `runs` step: a line for each run record. No JVM."""

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from batch_job import lookup, run_record
from batch_job.lookup import RecordFile
from batch_job.run_record import Outcome, RecordError, Verdict
from shared_model.errors import JobError
from shared_model.objects import Location, join
from shared_model.settings import StateSettings

#: Columns of the list of runs; the last may be long.
_COLUMNS = ("day", "run", "status", "rows", "quarantined", "planned", "input", "verdict")
_SHOWN = (Outcome.WARN, Outcome.FAIL, Outcome.UNPROVEN)


def run(args: argparse.Namespace, state: StateSettings) -> None:
    if args.ds:
        lookup.check_day(args.ds)
    for line in runs(state.runs_dir, args.ds, args.limit, args.json):
        print(line)


def runs(folder: Location, ds: str, limit: int, as_json: bool) -> Iterator[str]:
    """Up to `limit` runs, 0 for all, the newest first: of one day, or of all where `ds` is empty.

    Raises: JobError without any run.
    """
    found = sorted(map(_run, lookup.record_files(folder, ds)), key=lambda run: run["planned"], reverse=True)
    if not found:
        where = join(folder, ds) if ds else folder
        raise JobError(f"{where} holds no run; run `python -m batch_job plan` first, or check TANDEM_STATE")
    shown = found[: limit or None]
    if as_json:
        return map(json.dumps, shown)
    cells = [_COLUMNS, *(tuple(_cell(run[column]) for column in _COLUMNS) for run in shown)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    # The last column is not padded.
    widths[-1] = 0
    return ("  ".join(map(str.ljust, row, widths)) for row in cells)


def _run(file: RecordFile) -> dict[str, Any]:
    try:
        run = run_record.read(file.path)
    except RecordError as error:
        changed = file.modified.isoformat(timespec="seconds")
        unknown = dict.fromkeys(_COLUMNS)
        known = {"day": file.day, "run": file.run_id, "status": "unreadable"}
        return {**unknown, **known, "planned": changed, "verdict": str(error)}
    rows = run.scoring.rows if run.scoring else None
    reasons = run.scoring.quarantined if run.scoring else run.findings.quarantined if run.findings else None
    verdict = run.problem or _verdict(run.findings.verdicts if run.findings else ())
    count = sum(reasons.values()) if reasons is not None else None
    values = (run.ds, run.run_id, str(run.state), rows, count, run.planned_at, run.input.folder, verdict)
    return dict(zip(_COLUMNS, values, strict=True))


def _verdict(verdicts: Sequence[Verdict]) -> str:
    """The gates that did not pass plainly; empty before any gate has judged."""
    texts = [f"{it.gate} {it.outcome}{' (accepted)' if it.accepted else ''}" for it in verdicts]
    worth = [text for text, it in zip(texts, verdicts, strict=True) if it.outcome in _SHOWN]
    return ", ".join(worth) or ("ok" if verdicts else "")


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value or "-")

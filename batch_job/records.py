"""The day a step is about, and the record it works on."""

import re
from datetime import date
from pathlib import Path

from batch_job import record
from batch_job.record import RunRecord
from shared_model.errors import JobError
from shared_model.settings import StateSettings


def check_day(ds: str) -> None:
    """Raises: JobError unless `ds` is a day as YYYY-MM-DD."""
    try:
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", ds):
            raise ValueError
        date.fromisoformat(ds)
    except ValueError as error:
        raise JobError(f"--ds {ds!r}: expected a day as YYYY-MM-DD; trigger the DAG with a partition key") from error


def find(named: Path | None, ds: str, state: StateSettings) -> Path:
    """The record named, else the newest of the day. Raises: JobError."""
    if named:
        return named
    check_day(ds)
    folder = state.runs_dir / ds
    found = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise JobError(f"{folder} holds no run; run `python -m batch_job plan --ds {ds}` first")
    return found[-1]


def open_for(path: Path, ds: str) -> RunRecord:
    """Raises: RecordError; JobError where it is of another day."""
    run = record.read(path)
    if run.ds != ds:
        raise JobError(f"{path} is the record of ds={run.ds}, not of ds={ds}")
    return run

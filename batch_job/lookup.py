"""The day a step is about, and the record it works on."""

import os
import re
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from batch_job import identity, run_record
from batch_job.progress import log
from batch_job.run_record import ARCHIVE, RecordError, RunRecord, State
from shared_model.errors import JobError
from shared_model.objects import Location, join, open_objects
from shared_model.settings import StateSettings

#: The beginning of the ids of runs of many days, which nightly ones do not have.
MANY_DAYS = "days-"
#: A run that was planned longer ago, and has no result, was given up.
DUE = timedelta(hours=12)
#: Of a run that committed nothing: how it ended, in words.
_ENDED = {State.REFUSED: "was refused", State.FAILED: "failed"}


def check_day(ds: str) -> None:
    """Raises: JobError unless `ds` is a day as YYYY-MM-DD."""
    try:
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", ds):
            raise ValueError
        date.fromisoformat(ds)
    except ValueError as error:
        # What Airflow makes of a key that a run does not have.
        remedy = "trigger the DAG with a partition key" if ds == "None" else "for example --ds 2026-01-14"
        raise JobError(f"--ds {ds!r}: expected a day as YYYY-MM-DD; {remedy}") from error


def days(first: str, last: str) -> list[str]:
    """From the first to the last, both included. Raises: JobError where they are no days, or the wrong way round."""
    if not (first and last):
        raise JobError("--from and --to name the first and the last of many days: give both")
    for ds in (first, last):
        check_day(ds)
    start, end = date.fromisoformat(first), date.fromisoformat(last)
    if start > end:
        raise JobError(f"--from {first} is after --to {last}")
    return [str(start + timedelta(days=count)) for count in range((end - start).days + 1)]


def find(named: Location | None, ds: str, state: StateSettings) -> Location:
    """The record named, else the day's newest of the input that the environment sets; one line tells where a newer one
    is of another input. Raises: JobError."""
    if named:
        return named
    check_day(ds)
    wanted, newest = identity.configured_input(state), next(_newest_first(state, ds), None)
    if newest is None:
        hint = in_demo(state, ds, wanted)
        raise JobError(f"{join(state.runs_dir, ds)} holds no run; run `python -m batch_job plan --ds {ds}` first{hint}")
    path, latest = newest
    other = f"run {latest.run_id} of ds={ds}, the newest, is of {latest.input.identity}"
    if latest.input.identity == wanted:
        return path
    for path, run in _newest_first(state, ds):
        if run.input.identity == wanted:
            log(f"{other}; this is run {run.run_id} of {wanted}")
            return path
    raise JobError(
        f"{other}, and {identity.describe(state, wanted)}, has none: set TANDEM_INPUT_PATH and its like as for "
        f"`plan`, or name the run by --record {path}"
    )


def find_latest(state: StateSettings) -> tuple[Location, RunRecord] | None:
    """The newest run of the latest day that was planned of the input that the environment sets. Raises: RecordError."""
    wanted = identity.configured_input(state)
    for it in sorted(record_files(state.runs_dir), key=lambda it: it.day, reverse=True):
        run = run_record.read(it.path)
        if run.input.identity == wanted:
            return it.path, run
    return None


def nothing_planned(state: StateSettings) -> str:
    """One line where no run of the configured input is there: deferred answers are kept beside a day's scores."""
    wanted = identity.describe(state, identity.configured_input(state))
    return f"no run of {wanted} is in {state.runs_dir}: plan a day first"


def latest_refusal(state: StateSettings, ds: str, wanted: str, besides: str = "") -> str:
    """One line where the latest attempt at an input's day committed nothing, unless it is that of run `besides`."""
    try:
        latest = next((run for _, run in _newest_first(state, ds) if run.input.identity == wanted), None)
    except RecordError as error:
        return f"how the latest attempt at ds={ds} ended is unknown: {error}"
    if latest is None or latest.run_id == besides or latest.state not in _ENDED:
        return ""
    problem = latest.problem.removeprefix(f"ds={ds}: ")
    return f"the latest attempt at ds={ds}, run {latest.run_id}, {_ENDED[latest.state]}: {problem}"


def due_run(state: StateSettings, now: datetime) -> RunRecord | None:
    """A nightly run of any day that goes before those of many days: the newest that was planned lately and has no
    result yet."""
    for file in record_files(state.runs_dir):
        if file.modified <= now - DUE:
            return None
        if file.run_id.startswith(MANY_DAYS):
            continue
        try:
            run = run_record.read(file.path)
        except RecordError as error:
            log(f"whether this run is due is unknown: {error}")
            continue
        if run.state is State.PLANNED:
            return run
    return None


def goes_first(due: RunRecord, left: int) -> str:
    return (
        f"{left} days are left: run {due.run_id} of ds={due.ds}, planned at {due.planned_at}, has no result yet and "
        "goes first; call again when it has ended"
    )


def identity_of(state: StateSettings, epoch: str, release: str) -> str:
    """The input whose scores an epoch holds, by the record of the run that published it; empty where none says so."""
    ds = epoch.rpartition(".")[0]
    for _, run in _newest_first(state, ds):
        if run.publication and (run.publication.epoch, run.publication.live, run.release) == (epoch, True, release):
            return run.input.identity
    return ""


def in_demo(state: StateSettings, ds: str, wanted: str) -> str:
    """A hint for an error about a missing day of the default archive, where `make demo` has that day."""
    demo = state.state / "demo"
    if wanted != ARCHIVE or not any((demo / "runs" / ds).glob("*.json")):
        return ""
    short = os.path.relpath(demo) if demo.is_relative_to(Path.cwd()) else demo
    return f". `make demo` has ds={ds} in a state of its own: TANDEM_STATE={short} before the command reads that"


def open_for(path: Location, ds: str) -> RunRecord:
    """Raises: RecordError; JobError where it is of another day."""
    run = run_record.read(path)
    if run.ds != ds:
        raise JobError(f"{path} is the record of ds={run.ds}, not of ds={ds}")
    return run


def _newest_first(state: StateSettings, ds: str) -> Iterator[tuple[Location, RunRecord]]:
    """A day's records, whatever the input. Raises: RecordError where one is damaged."""
    yield from ((it.path, run_record.read(it.path)) for it in record_files(state.runs_dir, ds))


class RecordFile(NamedTuple):
    path: Location
    modified: datetime

    @property
    def day(self) -> str:
        return str(self.path).rsplit("/", 2)[1]

    @property
    def run_id(self) -> str:
        return run_id(self.path)


def record_files(runs: Location, ds: str = "") -> list[RecordFile]:
    """The records of a day, or of all days, the newest first. Raises: RecordError."""
    # DAY/RUN.json; a run's folder holds its report.
    folder, depth = (join(runs, ds), 0) if ds else (runs, 1)
    try:
        listed = open_objects(folder).list()
        found = [it for it in listed if it.path.endswith(".json") and it.path.count("/") == depth]
    except OSError as error:
        raise RecordError(f"{runs} cannot be read: {error.strerror}") from error
    newest_first = sorted(found, key=lambda it: it.modified, reverse=True)
    day = [ds] if ds else []
    return [RecordFile(join(runs, *day, it.path), it.modified) for it in newest_first]


def run_id(record: Location) -> str:
    return str(record).rpartition("/")[2].removesuffix(".json")

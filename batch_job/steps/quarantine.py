"""The `quarantine` step: the lines that the latest attempt at a day quarantined. No JVM."""

import argparse
import dataclasses
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from batch_job import identity, lookup, run_record
from batch_job.identity import Tables
from batch_job.progress import say
from batch_job.run_record import RecordError, State
from batch_job.shards import summary
from batch_job.tables import quarantined, table
from shared_model.errors import JobError
from shared_model.settings import StateSettings


def run(args: argparse.Namespace, state: StateSettings) -> None:
    lookup.check_day(args.ds)
    for line in quarantine(state, args.ds, args.limit, args.json):
        print(line)


def quarantine(state: StateSettings, ds: str, limit: int, as_json: bool) -> Iterator[str]:
    """Up to `limit` lines, 0 for all, that the latest attempt at a day of the current input quarantined, committed or
    not.

    Raises: JobError where no attempt is known.
    """
    wanted = identity.current(state)
    tables = Tables.of(state, wanted)
    attempt = max(table.last_attempt(tables.folders, ds), *_attempts(state.runs_dir / ds, wanted), -1)
    if attempt < 0:
        raise JobError(f"ds={ds} was never scored: {tables.quarantine} knows no attempt at it; check TANDEM_STATE")
    reasons = table.quarantined(tables.quarantine, ds, attempt)
    counted = f"{sum(reasons.values()):,} lines ({summary.counts(reasons)})" if reasons else "no line"
    say(f"ds={ds}: attempt {attempt} quarantined {counted}")
    found = islice(quarantined.lines(tables.quarantine, ds, attempt), limit or None)
    if as_json:
        return (json.dumps(_document(line), ensure_ascii=False) for line in found)
    return ("\t".join(cells) for cells in _with_heading(found))


def _attempts(folder: Path, wanted: str) -> Iterator[int]:
    """Of the day's runs of one input that are known to have ended."""
    for path in folder.glob("*.json"):
        try:
            run = run_record.read(path)
        except RecordError as error:
            say(str(error))
            continue
        if run.token and run.state is not State.PLANNED and run.input.identity == wanted:
            yield run.token


def _document(line: quarantined.Line) -> dict[str, Any]:
    return {**dataclasses.asdict(line), "raw": line.raw.decode("utf-8", "backslashreplace")}


def _with_heading(found: Iterable[quarantined.Line]) -> Iterator[tuple[str, str, str]]:
    yield "reason", "file", "raw"
    yield from ((line.reason, line.file, line.text) for line in found)

"""The `quarantine` step: the lines that the latest attempt at a day quarantined. No JVM."""

import argparse
import dataclasses
import json
from collections.abc import Iterator
from itertools import chain, islice

from batch_job import identity, lookup, run_record
from batch_job.identity import Tables
from batch_job.progress import log
from batch_job.reporting import plain_text
from batch_job.run_record import RecordError, State
from batch_job.tables import quarantined, table
from shared_model.errors import JobError
from shared_model.objects import Location
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
    wanted = identity.configured_input(state)
    tables = Tables.for_input(state, wanted)
    attempt = max(table.last_attempt(tables.folders, ds), *_attempts(state.runs_dir, ds, wanted), -1)
    if attempt < 0:
        raise JobError(f"ds={ds} was never scored: {tables.quarantine} knows no attempt at it; check TANDEM_STATE")
    reasons = table.quarantined(tables.quarantine, ds, attempt)
    counted = f"{sum(reasons.values()):,} lines ({plain_text.counts(reasons)})" if reasons else "no line"
    log(f"ds={ds}: attempt {attempt} quarantined {counted}")
    found = islice(quarantined.lines(tables.quarantine, ds, attempt), limit or None)
    if as_json:
        documents = (
            {**dataclasses.asdict(line), "raw": line.raw.decode("utf-8", "backslashreplace")} for line in found
        )
        return (json.dumps(document, ensure_ascii=False) for document in documents)
    return chain(["reason\tfile\traw"], (f"{line.reason}\t{line.file}\t{line.text}" for line in found))


def _attempts(runs: Location, ds: str, wanted: str) -> Iterator[int]:
    """Of the day's runs of one input that are known to have ended."""
    for file in lookup.record_files(runs, ds):
        try:
            run = run_record.read(file.path)
        except RecordError as error:
            log(str(error))
            continue
        if run.token and run.state is not State.PLANNED and run.input.identity == wanted:
            yield run.token

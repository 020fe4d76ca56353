"""The `read` step: committed scores as lines, for people and for pipes. No JVM."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from deltalake import DeltaTable

from batch_job import identity, lookup
from batch_job.identity import Tables
from batch_job.inputs.delta import find_table
from batch_job.progress import log
from batch_job.shards import schemas
from batch_job.tables import table
from shared_model.errors import JobError
from shared_model.objects import Location
from shared_model.settings import StateSettings

#: The main columns.
_SHORT = ("id", "label", "score", "release", "precision", "scored_at", "source")


@dataclass(frozen=True)
class About:
    """Notes on standard error, beside the rows. `input`: of the wanted day; `refusal`: how its latest attempt ended;
    `elsewhere`: another place of the day, for the error where it is missing here."""

    input: str = ""
    refusal: str = ""
    elsewhere: str = ""

    @property
    def missing(self) -> str:
        """The end of an error about a missing day."""
        return f" (input: {self.input})" * bool(self.input) + f"; {self.refusal}" * bool(self.refusal) + self.elsewhere


def run(args: argparse.Namespace, state: StateSettings) -> None:
    lookup.check_day(args.ds)
    wanted = identity.configured_input(state)
    about = About(
        identity.describe(state, wanted),
        lookup.latest_refusal(state, args.ds, wanted),
        lookup.in_demo(state, args.ds, wanted),
    )
    for line in lines(Tables.for_input(state, wanted).scores, args.ds, args.limit, args.json, about, args.label):
        print(line)


def lines(
    folder: Location, ds: str, limit: int, as_json: bool, about: About = About(), label: str = ""
) -> Iterator[str]:
    """Up to `limit` rows of a day, 0 for all, the archive first: tab-separated under a heading, or all columns as JSON.

    `label`: only rows of it, where given.

    Raises: JobError when there is no table, the day was never committed, a file or the log is damaged, or the table
    asks for a newer reader.
    """
    if (delta := find_table(folder)) is None:
        raise JobError(f"{folder} is no scores table; score a day first, or check TANDEM_SCORES{about.missing}")
    if not table.holds(delta, ds):
        raise JobError(f"{folder} holds no ds={ds}; score it first{about.missing}")
    if origin := table.inputs(delta).get(ds) or about.input:
        log(f"ds={ds} of {about.input if about.input.startswith(origin) else origin}, in {folder}")
    if about.refusal:
        log(f"{about.refusal}; these are the scores that were committed before")
    table.warn_unchecked(delta, ds)
    of_day = _rows(delta, ds, schemas.SCORES.names if as_json else _SHORT[:-1])
    found = islice((row for row in of_day if not label or row["label"] == label), limit or None)
    if as_json:
        yield from (json.dumps({"ds": ds, **row}, default=_plain, ensure_ascii=False) for row in found)
        return
    yield "\t".join(_SHORT)
    yield from ("\t".join(_cell(row[column]) for column in _SHORT) for row in found)


def _rows(delta: DeltaTable, ds: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    for source in schemas.SOURCES:
        for batch in table.read_files(delta, ds, columns, source):
            yield from ({**row, "source": source} for row in batch.to_pylist(maps_as_pydicts="strict"))


def _cell(value: object) -> str:
    """A value that keeps to its cell: an id may hold tabs and line ends, and a score more digits than tell anything."""
    if isinstance(value, float):
        return f"{value:.4f}"
    return _plain(value) if isinstance(value, datetime) else json.dumps(str(value), ensure_ascii=False)[1:-1]


def _plain(value: Any) -> str:
    """What JSON has no word for: times in UTC, bytes as hexadecimal."""
    return value.isoformat() if isinstance(value, datetime) else bytes(value).hex()

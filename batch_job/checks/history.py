"""Other days of a run's input, as the scores table knows them: which one it is held against, and whether one is newer.

A day whose commit names no input, because an earlier version wrote it or the log has forgotten, counts as one of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake import DeltaTable

from batch_job.checks import contents
from batch_job.inputs.delta import find_table, open_table
from batch_job.run_record import ARCHIVE, Findings
from batch_job.shards import schemas
from batch_job.tables import table
from shared_model.objects import Location

#: Of a commit: the share of texts on which INT8 and half precision agreed.
_AGREEMENT = "tandem.agreement"


@dataclass(frozen=True)
class Day:
    """A committed day: label → rows, and the agreement on all texts, None where it was not measured or is forgotten."""

    ds: str = ""
    labels: Mapping[str, int] = field(default_factory=dict)
    agreement: float | None = None


def facts(findings: Findings) -> dict[str, str]:
    """Facts for the commit that a later day is compared with."""
    measured = findings.agreement
    return {_AGREEMENT: f"{measured.share:.6f}" if measured and measured.texts else ""}


def last_day(
    folder: Location,
    ds: str,
    identity: str = ARCHIVE,
    count: Callable[[Sequence[str], str], Mapping[str, int]] = contents.read_labels,
) -> Day:
    """The nearest committed day of the input before `ds`; an empty Day without one. `count`: as `contents.read_labels`.

    Days without messages are passed over. Raises: JobError naming a damaged file or log.
    """
    if (delta := find_table(folder)) is None:
        return Day()
    if not (earlier := [day for day in _days(delta, identity) if day < ds]):
        return Day()
    day = max(earlier)
    files = delta.file_uris(file_pruning_predicate=table.partition_filter(day, schemas.ARCHIVE))
    labels = count(files, f"score ds={day} again")
    committed = table.committed(delta, day)
    agreement = table.commit_facts(delta, day, committed.token).get(_AGREEMENT) if committed else ""
    return Day(day, dict(labels), float(agreement) if agreement else None)


def newer_day(folder: Location, ds: str, identity: str = ARCHIVE) -> str:
    """The input's newest committed day, if it is newer than `ds`, else empty. Days without messages are passed over."""
    return max((day for day in _days(open_table(folder), identity) if day > ds), default="")


def _days(delta: DeltaTable, identity: str) -> set[str]:
    """Committed days of the input that hold messages."""
    files, inputs = pa.table(delta.get_add_actions(flatten=True)).to_pylist(), table.inputs(delta)
    held = {
        file["partition.ds"] for file in files if file["num_records"] and file["partition.source"] == schemas.ARCHIVE
    }
    return {ds for ds in held if inputs.get(ds, identity) == identity}

"""Quarantined lines, read back: those of one attempt, for people."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from batch_job.commits import table
from batch_job.inputs.delta import find_table
from batch_job.outputs.quarantine import printable


@dataclass(frozen=True)
class Line:
    """`raw`: its beginning, as it stands in `file`; `raw_bytes`: of the whole line."""

    reason: str
    file: str
    raw: bytes
    raw_bytes: int

    @property
    def text(self) -> str:
        """The raw bytes in one printable line; those that are no UTF-8 as \\xff."""
        shown = printable(self.raw.decode("utf-8", "backslashreplace"))
        return shown if self.raw_bytes <= len(self.raw) else f"{shown}… ({self.raw_bytes:,} bytes)"


def lines(folder: Path, ds: str, attempt: int) -> Iterator[Line]:
    """Those that one attempt quarantined. Raises: JobError naming what is damaged."""
    if (found := find_table(folder)) is None:
        return
    for batch in table.read_files(found, ds, ["attempt", "reason", "file", "raw", "raw_bytes"]):
        for row in batch.to_pylist():
            if row.pop("attempt") == attempt:
                yield Line(**row)

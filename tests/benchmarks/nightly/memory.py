"""Memory of a nightly run while it scores: driver, JVM and workers, against the rows they have done."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.harness import CannotMeasure

#: From here on memory must not grow.
SETTLED_ROWS = 20_000
_PERIOD_SECONDS = 1.0


@dataclass(frozen=True)
class Sample:
    """`bytes`: PSS of all processes together."""

    rows: int
    bytes: int


class Watch:
    """Samples while this context lasts."""

    def __init__(self, process: psutil.Process, rows_done: Callable[[], int]) -> None:
        self.samples: list[Sample] = []
        self._process = process
        self._rows_done = rows_done
        self._over = threading.Event()

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_PERIOD_SECONDS):
            family = (self._process, *self._process.children(recursive=True))
            self.samples.append(Sample(self._rows_done(), sum(pss(Path(f"/proc/{it.pid}")) for it in family)))


def pss(process: Path) -> int:
    """Bytes; pages that processes share are divided among them. 0 for a process that has ended."""
    try:
        rollup = (process / "smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))


def rows_written(folder: Path) -> int:
    """Rows of the files that are finished, which those still being written are not."""
    return sum(_rows(path) for path in folder.rglob("*.parquet"))


def _rows(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowInvalid):
        return 0


def figures(samples: Iterable[Sample]) -> dict[str, float]:
    """The most memory, and how much of it came after the first rows. Raises: CannotMeasure for too few samples."""
    taken = list(samples)
    settled = [sample.bytes for sample in taken if sample.rows >= SETTLED_ROWS]
    if len(settled) < 2:
        raise CannotMeasure(f"memory was not seen after {SETTLED_ROWS:,} rows; score a larger partition")
    return {
        "memory_gb": max(sample.bytes for sample in taken) / 1e9,
        "memory_growth": max(settled) / settled[0] - 1,
    }

"""Reports of benchmarks: figures with their bounds, the machine, one table and one JSON file.

A figure that could not be measured is absent, never guessed, and absent means not met.
"""

import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from shared_model import devices

REPOSITORY = Path(__file__).parents[2]

_HOLDS: dict[str, Callable[[float, float], bool]] = {
    ">=": lambda value, limit: value >= limit,
    "<=": lambda value, limit: value <= limit,
}
_BOUND = re.compile(r"(>=|<=) (-?\d+(?:\.\d+)?)")
#: The instructions that INT8 and BF16 on CPU depend on, as Linux names them.
_CPU_FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


class CannotMeasure(Exception):
    """The benchmark cannot run here. Its text is one line: what is missing, and what to do."""


@dataclass(frozen=True)
class Target:
    """A figure as it was promised. `bound`: ">= 0.990" or "<= 180", in `unit`."""

    name: str
    unit: str
    bound: str

    def __post_init__(self) -> None:
        if not _BOUND.fullmatch(self.bound):
            raise ValueError(f"{self.name}: bound {self.bound!r} is not '>= NUMBER' or '<= NUMBER'")

    def holds(self, value: float) -> bool:
        relation, limit = self.bound.split()
        return _HOLDS[relation](value, float(limit))


@dataclass(frozen=True)
class Figure:
    """A figure as it was measured. `value` is the median of `runs`."""

    name: str
    value: float
    unit: str
    bound: str
    holds: bool
    runs: tuple[float, ...]


@dataclass(frozen=True)
class Place:
    """Where, with what, of which commit and on which day (UTC) figures are measured."""

    machine: dict[str, Any]
    versions: dict[str, str]
    commit: str
    date: str = ""


@dataclass(frozen=True)
class Result:
    """The measured figures of a benchmark, and the machine. `conditions`: other facts that a reader needs."""

    targets: tuple[Target, ...]
    figures: tuple[Figure, ...]
    place: Place
    conditions: Mapping[str, Any] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        conditions = {"conditions": dict(self.conditions)} if self.conditions else {}
        return {**asdict(self.place), **conditions, "figures": [asdict(figure) for figure in self.figures]}

    def table(self) -> str:
        measured = {figure.name: figure for figure in self.figures}
        rows = [_row(target, measured.get(target.name)) for target in self.targets]
        header = ("figure", "value", "unit", "bound", "holds", "runs")
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (header, *rows)
        )

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_document(), indent=1, allow_nan=False) + "\n")


def result(
    targets: Sequence[Target],
    runs: Mapping[str, Sequence[float]],
    place: Place,
    conditions: Mapping[str, Any] | None = None,
) -> Result:
    """Hold the runs of each figure against its target; a target without runs has no figure."""
    if unknown := runs.keys() - {target.name for target in targets}:
        raise ValueError(f"no target is named {', '.join(sorted(unknown))}")
    figures = tuple(_figure(t, runs[t.name]) for t in targets if runs.get(t.name))
    return Result(tuple(targets), figures, place, conditions or {})


def place(packages: Iterable[str]) -> Place:
    """This place, as it is before anything is measured. `packages`: distributions that the figures depend on."""
    versions = {name: importlib.metadata.version(name) for name in packages}
    today = datetime.now(UTC).date().isoformat()
    return Place(_machine(), {"python": platform.python_version(), **versions}, _commit(), today)


def _machine() -> dict[str, Any]:
    """`load_1m`: processes that wanted a core during the last minute, so that a shared machine says so."""
    cpu = Path("/proc/cpuinfo").read_text()
    model, flags = re.search(r"^model name\s*: (.*)$", cpu, re.M), re.search(r"^flags\s*: (.*)$", cpu, re.M)
    known = flags[1].split() if flags else []
    return {
        "cpu": model[1] if model else platform.machine(),
        "cpu_flags": [flag for flag in _CPU_FLAGS if flag in known],
        "cores": devices.cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "device": devices.detect().value,
        "system": platform.platform(),
        "load_1m": os.getloadavg()[0],
    }


def _commit() -> str:
    """The commit that was measured, with `-dirty` where files differ from it; "unknown" outside a git checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _figure(target: Target, runs: Sequence[float]) -> Figure:
    value = statistics.median(runs)
    return Figure(target.name, value, target.unit, target.bound, target.holds(value), tuple(runs))


def _row(target: Target, figure: Figure | None) -> tuple[str, ...]:
    if figure is None:
        return (target.name, "not measured", target.unit, target.bound, "NO", "")
    holds = "yes" if figure.holds else "NO"
    return (
        target.name,
        f"{figure.value:.4g}",
        target.unit,
        target.bound,
        holds,
        " ".join(f"{run:.4g}" for run in figure.runs),
    )

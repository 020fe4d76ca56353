"""Limits from this process's control groups: the CPU quota and the memory limit of a container or a systemd unit.

Groups are nested, and the narrowest limit on the way to the root counts. Version 2 (`cpu.max`, `memory.max`) and
version 1 (`cpu.cfs_quota_us`, `memory.limit_in_bytes`) are read. A container often sees its own group mounted as the
root: its path in /proc/self/cgroup then does not exist, and the root's files hold its limits.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MOUNT, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
#: Version 1 represents no limit by a number near 2**63.
_UNLIMITED_BYTES = 2**60


@dataclass(frozen=True)
class Limits:
    """`cpus`: CPU time in cores, such as 1.5; `memory`: bytes. Infinite without a limit."""

    cpus: float = math.inf
    memory: float = math.inf


def limits(mount: Path = MOUNT, membership: Path = MEMBERSHIP) -> Limits:
    """The limits of this process; infinite without control groups."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return Limits()
    cpus, memory = [math.inf], [math.inf]
    for _, controllers, path in (line.split(":", 2) for line in lines):
        names = controllers.split(",")
        for folder in _folders(mount, controllers, path):
            if not controllers or "cpu" in names:
                cpus += [_read(_cpus_v1 if controllers else _cpus_v2, folder)]
            if not controllers or "memory" in names:
                memory += [_read(_memory_v1 if controllers else _memory_v2, folder)]
    return Limits(min(cpus), min(memory))


def _folders(mount: Path, controllers: str, path: str) -> Iterator[Path]:
    """Folders of the group and of all its ancestors, including the root."""
    root = mount / controllers if controllers else mount
    group = root / path.strip("/")
    yield group
    yield from (it for it in group.parents if it.is_relative_to(root))


def _read(limit: Callable[[Path], float], folder: Path) -> float:
    try:
        return limit(folder)
    except (OSError, ValueError):
        return math.inf


def _cpus_v2(folder: Path) -> float:
    quota, period = (folder / "cpu.max").read_text().split()
    return int(quota) / int(period)


def _cpus_v1(folder: Path) -> float:
    quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    return quota / period if quota > 0 else math.inf


def _memory_v2(folder: Path) -> float:
    return int((folder / "memory.max").read_text())


def _memory_v1(folder: Path) -> float:
    found = int((folder / "memory.limit_in_bytes").read_text())
    return found if found < _UNLIMITED_BYTES else math.inf

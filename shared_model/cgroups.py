"""Limits from this process's control groups: the CPU quota and the memory limit of a container or a systemd unit.

Groups are nested, and the narrowest limit on the way to the root counts. Version 2 (`cpu.max`, `memory.max`) and
version 1 (`cpu.cfs_quota_us`, `memory.limit_in_bytes`) are read. A container often sees its own group mounted as the
root: its path in /proc/self/cgroup then does not exist, and the root's files hold its limits.
"""

import math
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
        # Version 2 names no controllers: its root is `mount`. A folder holds the files of one version only.
        root = mount / controllers
        group = root / path.strip("/")
        for folder in (group, *(parent for parent in group.parents if parent.is_relative_to(root))):
            match _numbers(folder, "cpu.max") or _numbers(folder, "cpu.cfs_quota_us", "cpu.cfs_period_us"):
                case [quota, period] if quota > 0:
                    cpus.append(quota / period)
            found = _numbers(folder, "memory.max") or _numbers(folder, "memory.limit_in_bytes")
            memory += [most for most in found if most < _UNLIMITED_BYTES]
    return Limits(min(cpus), min(memory))


def _numbers(folder: Path, *names: str) -> list[int]:
    """The numbers in a group's files; empty if a file is missing or holds another word, such as "max"."""
    try:
        return [int(word) for name in names for word in (folder / name).read_text().split()]
    except (OSError, ValueError):
        return []

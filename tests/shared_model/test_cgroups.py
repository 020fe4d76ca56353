"""Limits of control groups, of both versions, read from folders that look like the kernel's."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from shared_model.cgroups import Limits, limits

UNLIMITED = "9223372036854771712"


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        # Version 2, in a container whose own group is the root.
        ("0::/", {"cpu.max": "150000 100000", "memory.max": "2000000000"}, Limits(1.5, 2e9)),
        ("0::/", {"cpu.max": "max 100000", "memory.max": "max"}, Limits()),
        # The narrowest on the way to the root counts.
        (
            "0::/a/b",
            {"a/cpu.max": "200000 100000", "a/b/cpu.max": "400000 100000", "a/b/memory.max": "7", "memory.max": "9"},
            Limits(2.0, 7),
        ),
        # /proc/self/cgroup holds the host's path, which the container does not see.
        ("0::/kubepods/pod1", {"cpu.max": "50000 100000"}, Limits(0.5)),
        # Version 1: a folder for each controller, and controllers that share one.
        (
            "4:memory:/box\n2:cpu,cpuacct:/box\n1:name=systemd:/box",
            {
                "cpu,cpuacct/box/cpu.cfs_quota_us": "300000",
                "cpu,cpuacct/box/cpu.cfs_period_us": "100000",
                "memory/box/memory.limit_in_bytes": "3000000000",
                "memory/memory.limit_in_bytes": UNLIMITED,
            },
            Limits(3.0, 3e9),
        ),
        (
            "4:memory:/\n1:cpu:/\n0::/",
            {
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": UNLIMITED,
            },
            Limits(),
        ),
        ("0::/", {"cpu.max": "no numbers"}, Limits()),
        ("", {}, Limits()),
    ],
)
def test_the_narrowest_limit_is_read(
    tmp_path: Path, membership: str, files: Mapping[str, str], expected: Limits
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "self").write_text(membership)
    assert limits(tmp_path, tmp_path / "self") == expected


def test_without_control_groups_there_are_no_limits(tmp_path: Path) -> None:
    assert limits(tmp_path, tmp_path / "self") == Limits(math.inf, math.inf)

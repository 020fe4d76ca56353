"""Detection of compute devices."""

import math
import os
from pathlib import Path

import pytest

from shared_model import cgroups, devices


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("fpu avx2 avx512_vnni", True),
        ("fpu avx2 avx_vnni", True),
        ("fpu amx_int8", True),
        ("fpu avx2 fma", False),
        ("fpu avx512f avx512_vnni_not", False),
    ],
)
def test_vnni_is_told_by_the_cpus_flags(tmp_path: Path, flags: str, found: bool) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"model name\t: avx512_vnni\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: {flags}\n")
    assert devices.has_vnni(cpuinfo) is found


@pytest.mark.parametrize(
    ("quota", "count"), [(math.inf, 8), (100.0, 8), (8.0, 8), (3.9, 3), (2.0, 2), (1.0, 1), (0.25, 1)]
)
def test_a_quota_leaves_as_many_cores_as_it_is_worth(quota: float, count: int) -> None:
    allowed = range(4, 12)
    for host in ("", "a", "b"):
        found = devices.usable_cores(allowed, quota, host)
        assert len(set(found)) == len(found) == count
        assert set(found) <= set(allowed)


def test_containers_of_one_machine_do_not_all_choose_its_first_cores() -> None:
    assert len({tuple(devices.usable_cores(range(64), 2.0, f"pod-{number}")) for number in range(20)}) > 5


def test_cores_are_those_of_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    monkeypatch.setattr(cgroups, "limits", lambda: cgroups.Limits(cpus=2.5))
    assert devices.cores() == 2

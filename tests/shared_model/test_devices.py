"""Detection of compute devices."""

import ctypes
import math
import os
from pathlib import Path
from typing import Any

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


def test_cores_lie_in_the_order_of_their_numa_nodes(tmp_path: Path) -> None:
    """As two sockets number them with two threads a core; a third node has memory alone."""
    for node, cpulist in {0: "0-3,8-11", 1: "4-7,12-15", 2: "", 10: "16", 3: "17\n"}.items():
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cpulist)
    (tmp_path / "possible").write_text("0-10")
    found = devices.numa_nodes([0, 1, 4, 5, 8, 12, 16, 17, 40], tmp_path)
    # A core of which the system does not tell is not lost.
    assert found == [[0, 1, 8], [4, 5, 12], [17], [16], [40]]
    assert devices.numa_nodes([0, 4, 9], tmp_path / "none") == [[0, 4, 9]]
    assert devices.numa_nodes(range(2)) != []


class Driver:
    """Of a host with two GPUs, as libcuda answers."""

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:
        device._obj.value = number + 40
        return 0 if number < 2 else 101

    def cuDeviceGetPCIBusId(self, name: Any, size: int, device: Any) -> int:
        name.value = f"0000:{device.value - 40 + 0xAF:02X}:00.0".encode()
        return 0


def test_a_gpus_numa_node_is_that_of_its_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0000:b0:00.0").mkdir()
    (tmp_path / "0000:b0:00.0" / "numa_node").write_text("1\n")
    # Without a driver.
    assert devices.gpu_node(1, tmp_path) == -1
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    # The system tells of one; there is no third.
    assert [devices.gpu_node(number, tmp_path) for number in range(3)] == [-1, 1, -1]


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

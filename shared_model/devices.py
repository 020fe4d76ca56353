"""Detects this process's compute devices without loading a framework."""

import ctypes
import os
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path

from shared_model import cgroups
from shared_model.types import Device, Precision

#: Half precision of each device, for the throughput lane and the nightly run.
HALF_PRECISION = {Device.CUDA: Precision.FP16, Device.CPU: Precision.BF16}


def detect() -> Device:
    """CUDA if there is a GPU, else CPU."""
    return Device.CUDA if gpus() else Device.CPU


def gpus() -> int:
    """How many the driver reports that this process may use.

    Calls the driver library directly: importing torch would cost every CPU executor seconds and memory.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return 0
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if found else 0


def gpu_node(number: int, buses: Path = Path("/sys/bus/pci/devices")) -> int:
    """The NUMA node that a GPU is connected to; -1 where the system tells of none."""
    device, name = ctypes.c_int(0), ctypes.create_string_buffer(32)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        asked = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), number)
        if asked or driver.cuDeviceGetPCIBusId(name, len(name), device):
            return -1
        return int((buses / name.value.decode().lower() / "numa_node").read_text())
    except OSError:
        return -1


def cuda_driver() -> int:
    """The version of CUDA that the driver supports, 12040 for 12.4; 0 without a driver."""
    version = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return 0
    return version.value


def has_vnni(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU adds products of 8-bit numbers in 32 bits: without VNNI (or AMX) x86 does so in 16."""
    flags = {word for line in cpuinfo.read_text().splitlines() if line.startswith("flags") for word in line.split()}
    return not flags.isdisjoint({"avx512_vnni", "avx_vnni", "amx_int8"})


def numa_nodes(cores: Sequence[int], nodes: Path = Path("/sys/devices/system/node")) -> list[list[int]]:
    """These cores by the NUMA node whose memory is near them, in order; all together where the system tells of none."""
    listed = [_cores_of(path.read_text()) for path in sorted(nodes.glob("node[0-9]*/cpulist"), key=_node_number)]
    found = [mine for node in listed if (mine := [core for core in cores if core in node])]
    rest = [core for core in cores if not any(core in node for node in listed)]
    return [*found, rest] if rest else found


def _node_number(cpulist: Path) -> int:
    return int(cpulist.parent.name.removeprefix("node"))


def _cores_of(cpulist: str) -> set[int]:
    """Of the kernel's form, as 0-3,8; empty for a node of memory alone."""
    spans = [span.partition("-") for span in cpulist.strip().split(",") if span]
    return {core for first, _, last in spans for core in range(int(first), int(last or first) + 1)}


def cores() -> int:
    """The number of cores that this process may use."""
    return len(usable_cores(os.sched_getaffinity(0), cgroups.limits().cpus))


def usable_cores(allowed: Collection[int], quota: float, host: str = "") -> list[int]:
    """The cores to use of those that the affinity allows: as many as the quota, rounded down, at least one. With more
    threads, all would be throttled together whenever the quota is used up.

    `host`: determines the first core, so that the containers of one machine do not all choose the same.
    """
    found = sorted(allowed)
    count = min(len(found), max(1, int(min(quota, len(found)))))
    first = zlib.crc32(host.encode()) % len(found) if count < len(found) else 0
    return sorted((found + found)[first : first + count])

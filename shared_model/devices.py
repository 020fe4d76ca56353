"""Detects this process's compute devices without loading a framework."""

import ctypes
import os
import zlib
from collections.abc import Collection
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

"""What this process can compute on."""

from pathlib import Path

import pytest

from shared_model import devices


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

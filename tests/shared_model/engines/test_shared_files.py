"""Files in memory that processes share: equal bytes are held once, and what was compared cannot be changed."""

import contextlib
import fcntl
import mmap
import os
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shared_model.engines.shared_files import _SEALS, let_pages_go, shared

DATA = os.urandom(3 << 20)


@pytest.fixture
def closing() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def held(closing: contextlib.ExitStack, data: bytes) -> int:
    """The file's number in memory."""
    descriptor = shared(data)
    closing.callback(os.close, descriptor)
    assert os.pread(descriptor, len(data) + 1, 0) == data
    return os.fstat(descriptor).st_ino


def impostor(closing: contextlib.ExitStack, data: bytes, seals: int) -> int:
    """A file named as one of `DATA`."""
    descriptor = os.memfd_create(f"tandem-{len(DATA)}-{zlib.crc32(DATA):08x}", os.MFD_ALLOW_SEALING)
    closing.callback(os.close, descriptor)
    os.write(descriptor, data)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return os.fstat(descriptor).st_ino


@pytest.mark.parametrize("data", [DATA, b""])
def test_equal_bytes_are_in_memory_once(closing: contextlib.ExitStack, data: bytes) -> None:
    assert held(closing, data) == held(closing, data)


def test_pages_that_were_let_go_are_no_memory_of_this_process_and_come_back(closing: contextlib.ExitStack) -> None:
    descriptor = shared(DATA)
    closing.callback(os.close, descriptor)
    mapped = closing.enter_context(mmap.mmap(descriptor, len(DATA), prot=mmap.PROT_READ))
    before = resident()
    assert mapped[:] == DATA
    assert resident() - before > len(DATA) // 2
    let_pages_go()
    assert resident() - before < len(DATA) // 2
    assert mapped[:] == DATA


def resident() -> int:
    """Bytes of shared memory that this process has mapped and read."""
    pages = Path("/proc/self/statm").read_text().split()[2]
    return int(pages) * mmap.PAGESIZE


def test_those_that_start_together_make_one_file(closing: contextlib.ExitStack) -> None:
    # The lock holds between threads as between processes.
    begin = threading.Barrier(8)

    def start(_: int) -> int:
        begin.wait(10)
        return held(closing, DATA)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(start, range(8)))) == 1


@pytest.mark.parametrize("data", [DATA[:-1], DATA[:-1] + bytes([DATA[-1] ^ 1]), b""])
def test_other_bytes_are_another_file(closing: contextlib.ExitStack, data: bytes) -> None:
    assert held(closing, DATA) != held(closing, data)


def test_a_file_cannot_be_changed(closing: contextlib.ExitStack) -> None:
    descriptor = shared(DATA)
    closing.callback(os.close, descriptor)
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    closing.callback(os.close, again)
    for change in (lambda: os.pwrite(again, b"x", 0), lambda: os.ftruncate(again, 1)):
        with pytest.raises(PermissionError):
            change()


def test_a_file_of_the_same_name_counts_only_with_the_same_bytes(closing: contextlib.ExitStack) -> None:
    other = impostor(closing, DATA[::-1], _SEALS)
    assert held(closing, DATA) != other


@pytest.mark.parametrize("missing", [fcntl.F_SEAL_WRITE, fcntl.F_SEAL_SHRINK])
def test_a_file_that_can_still_be_changed_is_not_used(closing: contextlib.ExitStack, missing: int) -> None:
    other = impostor(closing, DATA, _SEALS & ~missing)
    assert held(closing, DATA) != other

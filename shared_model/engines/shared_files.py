"""Files in memory that the processes of a service hold once: its workers, and releases of a worker with equal bytes.

They have no name on a disk. Each is sealed as soon as its bytes are in it: whoever maps it reads for ever what it was
compared with. A process finds those that its parent, its parent's children and itself have open, and no other user's.
"""

import contextlib
import ctypes
import fcntl
import mmap
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_PREFIX = "tandem-"
#: Bytes that are compared at once.
_STEP = 1 << 20


def shared(data: bytes) -> int:
    """The descriptor of a sealed file that holds `data`: one that is there, else a new one. The caller closes it; while
    it is open, other processes find it. Raises: OSError without memory or descriptors."""
    # The name saves a comparison of most others; it proves nothing.
    name = f"{_PREFIX}{len(data)}-{zlib.crc32(data):08x}"
    with _one_at_a_time():
        for path in _held(name):
            # Its holder may end, or close it, at any time.
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                if _holds(descriptor, data):
                    return descriptor
                os.close(descriptor)
        return _new(name, data)


def let_pages_go() -> None:
    """Unmap the pages of all such files that this process has read. They stay in memory, once for all processes, and
    are mapped again where they are read; until then each mapping of them counts as memory of this process."""
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, *_, path = line.split(maxsplit=5)
        if path.startswith(f"/memfd:{_PREFIX}"):
            start, end = (int(it, 16) for it in addresses.split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Among the children of one parent, so that of workers that start together one makes the file. Its `environ` is a
    file that all of them can name, and only their user can open. Where they cannot, each may make its own."""
    with contextlib.ExitStack() as locked:
        with contextlib.suppress(OSError):
            file = locked.enter_context(Path(f"/proc/{os.getppid()}/environ").open("rb"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _held(name: str) -> Iterator[Path]:
    """The files of this name that related processes have open: this one, its parent, and the children of that."""
    parent = os.getppid()
    related = [str(os.getpid()), str(parent)]
    # A process that is gone has no children; a kernel may not tell them.
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{parent}/task").iterdir():
            related += (thread / "children").read_text().split()
    for process in dict.fromkeys(related):
        with contextlib.suppress(OSError):
            for path in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if path.readlink() == Path(f"/memfd:{name} (deleted)"):
                        yield path


def _holds(descriptor: int, data: bytes) -> bool:
    """Whether a file has these bytes, and can never have others."""
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS or os.fstat(descriptor).st_size != len(data):
        return False
    return all(os.pread(descriptor, _STEP, at) == data[at : at + _STEP] for at in range(0, len(data), _STEP))


def _new(name: str, data: bytes) -> int:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(data)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor

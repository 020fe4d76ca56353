"""Writing files, atomically and for one user alone, and texts that may be shown: of exceptions and of URLs.

Standard library only.
"""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def unfinished(path: Path) -> Path:
    """Where a file is written before it has its own name, another path for each call. Sweeps know by it what killed
    processes leave."""
    return path.with_name(f".{path.name.removeprefix('.')}.{secrets.token_hex(4)}.part")


def atomic_write(path: Path, data: bytes, mode: int | None = None) -> None:
    """Replace one file in one step, creating its folder: a reader sees the old contents or the new. `mode`: its
    permissions, from the first byte on; None: the usual ones. Raises: OSError."""
    with temporary_file(unfinished(path)) as temporary:
        if mode is not None:
            temporary.touch(0o600)
            temporary.chmod(mode)
        temporary.write_bytes(data)
        temporary.replace(path)


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """A path in a folder, made if missing; the file is gone afterwards unless it was renamed. Raises: OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def keep_private() -> None:
    """Files and folders that this process makes from now on are its user's alone."""
    os.umask(0o077)


def one_line(error: BaseException) -> str:
    """The text of an exception in one line of at most 300 characters; its type if it has no text."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def escaped(name: str) -> str:
    """A name as a terminal can show it: characters that would forge a line are written as escapes."""
    return name if name.isprintable() else repr(name)[1:-1]


def without_user(url: str) -> str:
    """A URL without USER:PASSWORD@, whatever characters a password holds."""
    return re.sub(r"//[^/]*@", "//", url)

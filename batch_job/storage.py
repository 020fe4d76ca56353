"""Atomic writes: a reader sees the old file or the new one, never a part. Standard library only."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def atomic_write(path: Path, text: str, temporary: str) -> None:
    """Write a file by one rename. `temporary`: a name beside it that no other writer uses. Raises: OSError."""
    with temporary_file(path.with_name(temporary)) as part:
        part.write_text(text)
        part.replace(path)


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """A path in a folder, made if missing; the file is gone afterwards unless it was renamed. Raises: OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)

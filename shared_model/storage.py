"""Writing files atomically, and reducing an exception to one line."""

import secrets
from pathlib import Path


def atomic_write(path: Path, data: bytes) -> None:
    """Replace one file in one step, creating its folder: a reader sees the old contents or the new. Raises: OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def one_line(error: BaseException) -> str:
    """The text of an exception in one line of at most 300 characters; its type if it has no text."""
    return " ".join(str(error).split())[:300] or type(error).__name__

"""A folder of data that can be made again, kept from one start to the next; only what the cluster key wrote is read.

A process that runs the contents of a folder trusts all who can write there; a MAC leaves those that have the key.
"""

import contextlib
import hmac
import logging
import os
from collections.abc import Callable
from pathlib import Path

from shared_model.storage import atomic_write

_MAC_BYTES = 32
#: Bytes that are kept at most; what was read or written longest ago goes first.
_MOST_BYTES = 256 << 20

log = logging.getLogger(__name__)


class VerifiedCache:
    """Any number of processes may share one folder."""

    def __init__(self, folder: Path, load_key: Callable[[], bytes], most_bytes: int = _MOST_BYTES) -> None:
        """`load_key`: empty without a key; then nothing is kept."""
        self._folder = folder
        self._load_key = load_key
        self._most_bytes = most_bytes
        self._writes = True

    def read(self, name: str) -> bytes | None:
        """None for what is not there; also, with a line in the log, for what has no valid MAC."""
        if not (key := self._load_key()):
            return None
        path = self._folder / name
        try:
            kept = path.read_bytes()
        except OSError:
            return None
        data = kept[_MAC_BYTES:]
        if not hmac.compare_digest(kept[:_MAC_BYTES], _mac(key, name, data)):
            log.warning("%s is damaged or was written without this cluster key: it is made again", path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def write(self, name: str, data: bytes) -> None:
        """If it cannot be kept, that is logged once."""
        if not self._writes or not (key := self._load_key()):
            return
        try:
            atomic_write(self._folder / name, _mac(key, name, data) + data, 0o600)
            self._prune()
        except OSError as error:
            self._writes = False
            log.warning("%s cannot be written, so each start makes anew what it would keep: %s", self._folder, error)

    def _prune(self) -> None:
        """Raises: OSError."""
        files = []
        for path in self._folder.iterdir():
            # Another process may have replaced or removed it.
            with contextlib.suppress(FileNotFoundError):
                files.append((path.stat(), path))
        kept = 0
        for facts, path in sorted(files, key=lambda it: it[0].st_mtime, reverse=True):
            kept += facts.st_size
            if kept > self._most_bytes:
                path.unlink(missing_ok=True)


def _mac(key: bytes, name: str, data: bytes) -> bytes:
    """Of this data under this name, and of nothing else that the key signs."""
    return hmac.digest(key, b"tandem cache\n" + name.encode() + b"\n" + data, "sha256")

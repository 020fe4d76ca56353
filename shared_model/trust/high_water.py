"""High-water marks: the highest versions of pointer and policy that processes of this host accepted, over restarts.

A writer of Redis can store a signed value of before again; its version is below the mark.
"""

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from shared_model.errors import SettingError, Untrusted
from shared_model.storage import atomic_write

#: In the state folder.
FILE = "accepted.json"

POINTER, POLICY = "pointer", "policy"


def pointer_of(model: str) -> str:
    """The subject of a model's pointer; "" is the default model."""
    return f"{POINTER}:{model}" if model else POINTER


log = logging.getLogger(__name__)


class HighWater:
    """`path`: the file that keeps the marks; None: they last as long as this object."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises: SettingError for a file that is damaged or cannot be read."""
        self._path = path
        self._marks = _read(path) if path else {}

    def of(self, subject: str) -> int:
        """0 before the first."""
        return self._marks.get(subject, 0)

    def check(self, subject: str, version: int) -> None:
        """Raises: Untrusted for a version below the mark; its text is a predicate without a subject."""
        if version < self.of(subject):
            where = f"; if all later ones were lost, remove {self._path}" if self._path else ""
            raise Untrusted(f"has version {version}, which comes after version {self.of(subject)}{where}")

    def raise_to(self, subject: str, version: int) -> None:
        """To be called with versions whose signature was verified. If they cannot be kept, that is logged."""
        if version <= self.of(subject):
            return
        self._marks[subject] = version
        if self._path is None:
            return
        try:
            with _locked(self._path):
                kept = _read(self._path)
                self._marks = {it: max(self.of(it), kept.get(it, 0)) for it in {*self._marks, *kept}}
                atomic_write(self._path, json.dumps(self._marks).encode(), 0o600)
        except (OSError, SettingError) as error:
            log.warning("version %d of the %s is remembered until this process ends: %s", version, subject, error)


def _read(path: Path) -> dict[str, int]:
    try:
        document = json.loads(path.read_bytes())
        return {str(subject): int(version) for subject, version in document.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SettingError(
            f"{path}: is damaged; remove it if the pointer and the policy in Redis are the latest ones"
        ) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

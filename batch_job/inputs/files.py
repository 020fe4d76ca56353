"""The files of a folder, local or behind a URL. No JVM."""

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, TypeVar, cast

import pyarrow as pa

from shared_model.errors import JobError
from shared_model.objects import ObjectInfo, is_url, open_objects
from shared_model.storage import without_user

T = TypeVar("T")

#: Errors that reading a damaged file raises.
DAMAGE = (OSError, EOFError, ValueError, zlib.error, pa.ArrowException)


class Folder:
    """`location`: a path or URL. Raises: JobError for a URL that cannot be served, and in every method where the place
    cannot be reached."""

    def __init__(self, location: str) -> None:
        self.location = location
        try:
            self._files = open_objects(location)
        except (ValueError, OSError) as error:
            raise JobError(f"{without_user(location)} cannot be looked at from here: {error}") from None

    def is_there(self, name: str = "") -> bool:
        with self._reached():
            if not is_url(self._files.root):
                return os.path.isdir(self._full(name))
            return bool(self._files.folders(name) or list(self._files.list(name, deep=False)))

    def names(self) -> list[str]:
        """Its files and, as FOLDER/NAME, those in folders inside it, sorted, without those that Spark does not see
        either. Raises: JobError for a symbolic link."""
        with self._reached():
            names = [found.path for found in self._files.list()]
        for name in names:
            self._refuse_link(name)
        return sorted(name for name in names if not any(part[:1] in "._" for part in name.split("/")))

    def find(self, name: str) -> ObjectInfo | None:
        with self._reached():
            return self._files.find(name)

    def sha256(self, name: str) -> str:
        with self._reached(), self._files.open(name) as raw:
            return hashlib.file_digest(cast("io.BufferedReader", raw), "sha256").hexdigest()

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """A file's bytes, unpacked if its name ends in .gz. Raises: JobError naming the file, also while it is read."""
        try:
            self._refuse_link(name)
            with self._files.open(name) as raw:
                yield cast("BinaryIO", gzip.GzipFile(fileobj=raw) if name.endswith(".gz") else raw)
        except DAMAGE as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).partition("\n")[0]
            raise JobError(f"{self.location}/{name} cannot be read: {why}") from error

    def look(self, name: str, look: Callable[[BinaryIO], T]) -> T:
        """What `look` makes of a file's bytes. Raises: JobError naming the file."""
        with self.open(name) as content:
            return look(content)

    def _refuse_link(self, name: str) -> None:
        """Raises: JobError for a symbolic link, as releases refuse one: it may lead anywhere on this machine."""
        if not is_url(self._files.root) and os.path.islink(self._full(name)):
            raise JobError(f"{self._full(name)} is a symbolic link; put the file itself there")

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise JobError(f"{self.location} cannot be read: {error.strerror or error}") from error

    def _full(self, name: str) -> str:
        return os.path.join(self._files.root, name) if name else self._files.root

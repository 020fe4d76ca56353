"""The files of a folder, local or behind any URL that fsspec knows (s3a://, gs://, abfss://, …). No JVM."""

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeVar, cast

import fsspec
import pyarrow as pa

from shared_model.errors import JobError
from shared_model.releases.files import as_oserror

T = TypeVar("T")

_CHUNK = 1 << 20
#: Errors that reading a damaged file raises.
_DAMAGE = (OSError, EOFError, ValueError, zlib.error, pa.ArrowException)


class Folder:
    """`location`: the path or URL that Spark gets. Raises: JobError where a URL's package is not
    installed, and in every method where the place cannot be reached."""

    def __init__(self, location: str) -> None:
        self.location = location
        try:
            self._fs, path = fsspec.core.url_to_fs(location)
        except (ImportError, ValueError) as error:
            raise JobError(f"{location} cannot be looked at from here: {error}") from error
        self._path = path.rstrip("/")

    def is_there(self, name: str = "") -> bool:
        with self._reached():
            # Drivers remember listings, and what is waited for may have come since.
            self._fs.invalidate_cache()
            return bool(self._fs.isdir(self._full(name)))

    def names(self) -> list[str]:
        """Its files, sorted, without those that Spark does not see either. Raises: JobError for a symbolic link."""
        with self._reached():
            entries = self._fs.ls(self._path, detail=True)
        files = [entry for entry in entries if entry["type"] != "directory"]
        for entry in files:
            self._refuse_link(entry)
        names = (entry["name"].rpartition("/")[2] for entry in files)
        return sorted(name for name in names if name[:1] not in "._")

    def _refuse_link(self, entry: Mapping[str, Any]) -> None:
        """Raises: JobError for a symbolic link, as releases refuse one: it may lead anywhere on this machine."""
        if entry.get("islink"):
            raise JobError(f"{entry['name']} is a symbolic link; put the file itself there")

    def size(self, name: str) -> int | None:
        """Bytes; None where there is no such file."""
        with self._reached():
            return int(self._fs.size(self._full(name))) if self._fs.isfile(self._full(name)) else None

    def sha256(self, name: str) -> str:
        digest = hashlib.sha256()
        with self._reached(), self._fs.open(self._full(name), "rb") as raw:
            while chunk := raw.read(_CHUNK):
                digest.update(chunk)
        return digest.hexdigest()

    def look(self, name: str, look: Callable[[BinaryIO], T]) -> T:
        """What `look` makes of a file's bytes, unpacked if its name ends in .gz. Raises: JobError naming the file."""
        try:
            with as_oserror():
                self._refuse_link(self._fs.info(self._full(name)))
                opened = self._fs.open(self._full(name), "rb")
            with opened as raw:
                return look(cast("BinaryIO", gzip.GzipFile(fileobj=raw) if name.endswith(".gz") else raw))
        except _DAMAGE as error:
            raise JobError(f"{self.location}/{name} cannot be read: {str(error).partition(chr(10))[0]}") from error

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            with as_oserror():
                yield
        except OSError as error:
            raise JobError(f"{self.location} cannot be read: {error}") from error

    def _full(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

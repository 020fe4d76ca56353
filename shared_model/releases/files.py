"""Storage of releases: a local folder, or a URL (s3://, gs://, az://)."""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from shared_model.errors import ReleaseError, SettingError
from shared_model.objects import ObjectInfo, Objects, located, open_objects
from shared_model.releases.manifest import FILE as MANIFEST
from shared_model.storage import atomic_write, without_user

_MANIFEST_PATH = re.compile(rf"[^/]+/[^./][^/]*/{re.escape(MANIFEST)}")


class Files(Protocol):
    """Files under one root, by their path with `/`. Callers check paths: see `manifest`. `root` is for messages.

    Raises: FileNotFoundError; ReleaseError if the path is not a regular file; OSError otherwise.
    """

    root: str

    def read(self, path: str) -> bytes: ...

    def size(self, path: str) -> int: ...

    def modified(self, path: str) -> datetime: ...

    def folder_size(self, path: str) -> int:
        """Total bytes of the files in a folder."""

    def manifests(self) -> list[str]:
        """Paths NAME/ID/manifest.json, oldest first."""

    def write(self, path: str, data: bytes) -> None:
        """Replace one file."""

    def write_folder(self, path: str, files: Mapping[str, bytes]) -> None:
        """Write a folder that includes a manifest; a reader sees the whole folder or no manifest."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder that includes a manifest; a reader sees the whole folder or no manifest."""

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Exclude other writers of the pointer file, if the storage has locks."""


def open_files(root: str | Path) -> Files:
    """Raises: SettingError for a URL that cannot be served."""
    place = located(str(root))
    if isinstance(place, Path):
        return LocalFiles(place)
    try:
        return UrlFiles(open_objects(place))
    except (ValueError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingError(f"TANDEM_RELEASES={without_user(str(root))}: {why}") from error


def reason(error: OSError) -> str:
    """The cause of a failed read or write, in one line."""
    return " ".join(str(error.strerror or error).split()) or type(error).__name__


class LocalFiles:
    """A folder without symbolic links: a release holds its files itself."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.root = str(self._root)

    def read(self, path: str) -> bytes:
        return self._file(path).read_bytes()

    def size(self, path: str) -> int:
        return self._file(path).stat().st_size

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self._file(path).stat().st_mtime, UTC)

    def folder_size(self, path: str) -> int:
        return sum(file.stat().st_size for file in self._real(path).rglob("*") if file.is_file())

    def manifests(self) -> list[str]:
        found = [p for p in self._root.glob(f"*/*/{MANIFEST}") if not p.parent.name.startswith(".")]
        return [p.relative_to(self._root).as_posix() for p in sorted(found, key=lambda p: p.stat().st_mtime)]

    def write(self, path: str, data: bytes) -> None:
        atomic_write(self._real(path), data)

    def write_folder(self, path: str, files: Mapping[str, bytes]) -> None:
        final = self._real(path)
        final.parent.mkdir(parents=True, exist_ok=True)
        building = final.with_name(f".building-{secrets.token_hex(4)}")
        building.mkdir()
        try:
            for name, data in files.items():
                target = building / name
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(data)
            building.rename(final)
        except OSError as error:
            # Another process may have built the same bytes first; its release is identical.
            if not final.exists():
                raise
            if not (final / MANIFEST).exists():
                raise ReleaseError(f"{final} holds no {MANIFEST}: a copy that was not finished; remove it") from error
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def remove_folder(self, path: str) -> None:
        folder = self._real(path)
        # Hidden in one step: `manifests` skips names that begin with a dot.
        removed = folder.with_name(f".removed-{secrets.token_hex(4)}")
        folder.rename(removed)
        shutil.rmtree(removed)
        with contextlib.suppress(OSError):  # other releases of this name stay
            folder.parent.rmdir()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        self._root.mkdir(parents=True, exist_ok=True)
        with open(self._real(".lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _real(self, path: str) -> Path:
        target = self._root / path
        if os.path.realpath(target) != os.path.join(os.path.realpath(self._root), path):
            raise ReleaseError(f"{target} is, or lies behind, a link; a release holds its files itself")
        return target

    def _file(self, path: str) -> Path:
        target = self._real(path)
        if target.exists() and not target.is_file():
            # Reading a pipe would block for ever.
            raise ReleaseError(f"{target} is no regular file; a release holds its files itself")
        return target


class UrlFiles:
    """Storage behind a URL. Single objects are written atomically there; a folder's manifest is written last."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.root = objects.root

    def read(self, path: str) -> bytes:
        return self._objects.get(path)

    def size(self, path: str) -> int:
        return self._found(path).size

    def modified(self, path: str) -> datetime:
        return self._found(path).modified

    def folder_size(self, path: str) -> int:
        return sum(found.size for found in self._objects.list(path))

    def manifests(self) -> list[str]:
        found = [it for it in self._objects.list() if _MANIFEST_PATH.fullmatch(it.path)]
        return [it.path for it in sorted(found, key=lambda it: it.modified)]

    def write(self, path: str, data: bytes) -> None:
        self._objects.put(path, data)

    def write_folder(self, path: str, files: Mapping[str, bytes]) -> None:
        for name in sorted(files, key=lambda name: name == MANIFEST):
            self.write(f"{path}/{name}", files[name])

    def remove_folder(self, path: str) -> None:
        # First: a reader sees the whole folder or no manifest.
        self._found(f"{path}/{MANIFEST}")
        self._objects.delete(f"{path}/{MANIFEST}")
        self._objects.delete(*(found.path for found in self._objects.list(path)))

    def locked(self) -> contextlib.AbstractContextManager[None]:
        # Object stores have no locks: of two simultaneous promotions without Redis, the last write wins.
        return contextlib.nullcontext()

    def _found(self, path: str) -> ObjectInfo:
        if (found := self._objects.find(path)) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.root}/{path}")
        return found

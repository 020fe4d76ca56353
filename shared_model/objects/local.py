"""Objects in a folder of this machine. Standard library only."""

import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from shared_model.objects.contract import ObjectInfo
from shared_model.storage import atomic_write, temporary_file, unfinished


class LocalObjects:
    """A folder. It needs not be there: writing makes it."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self.root = str(self._root)

    def get(self, path: str) -> bytes:
        return self._path(path).read_bytes()

    def open(self, path: str) -> BinaryIO:
        return open(self._path(path), "rb")

    def find(self, path: str) -> ObjectInfo | None:
        try:
            found = self._path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        modified = datetime.fromtimestamp(found.st_mtime, UTC)
        return ObjectInfo(path, found.st_size, modified) if stat.S_ISREG(found.st_mode) else None

    def folders(self, folder: str = "") -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self._path(folder)) if entry.is_dir()]
        except FileNotFoundError:
            return []

    def list(self, folder: str = "", deep: bool = True) -> Iterator[ObjectInfo]:
        for parent, inside, names in os.walk(self._path(folder)):
            if not deep:
                inside.clear()
            for name in names:
                if found := self.find(os.path.relpath(os.path.join(parent, name), self._root)):
                    yield found

    def put(self, path: str, data: bytes) -> None:
        atomic_write(self._path(path), data)

    def create(self, path: str, data: bytes) -> bool:
        target = self._path(path)
        with temporary_file(unfinished(target)) as temporary:
            temporary.write_bytes(data)
            try:
                os.link(temporary, target)
            except FileExistsError:
                return target.read_bytes() == data
        return True

    def delete(self, *paths: str) -> None:
        for path in paths:
            self._path(path).unlink(missing_ok=True)

    def _path(self, path: str) -> Path:
        return self._root / path

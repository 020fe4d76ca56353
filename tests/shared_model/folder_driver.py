"""A folder behind fsspec, as shared://PATH: what a process sees of an object store that others write to.

`python -m tests.shared_model.folder_driver COMMAND` is `python -m shared_model COMMAND` with that driver installed.
"""

import sys
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from shared_model.__main__ import main


class SharedFolder(LocalFileSystem):  # type: ignore[misc]
    protocol = "shared"

    @classmethod
    def _strip_protocol(cls, path: str) -> Any:
        return super()._strip_protocol(path.removeprefix(f"{cls.protocol}://"))


class Unlisted(SharedFolder):
    """A folder that may not be listed, as with some object stores' policies."""

    protocol = "unlisted"

    def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:
        raise PermissionError(13, "listing is forbidden")


class Full(SharedFolder):
    """One that takes no more .bin files."""

    protocol = "full"

    def pipe_file(self, path: str, value: bytes, **kwargs: Any) -> None:
        if path.endswith(".bin"):
            raise OSError(28, "no space left")
        super().pipe_file(path, value, **kwargs)


class Broken(SharedFolder):
    """One whose service answers nonsense, in the way of drivers: with an error of its own, over several lines."""

    protocol = "broken"

    def _fail(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no answer\nfrom the service")

    cat_file = pipe_file = ls = info = _fail


class Refusing(SharedFolder):
    """One that cannot be used as this process is set up."""

    protocol = "refusing"

    def __init__(self, **options: Any) -> None:
        raise RuntimeError("no credentials:\nset them")


def install() -> None:
    for driver in (SharedFolder, Unlisted, Full, Broken, Refusing):
        fsspec.register_implementation(driver.protocol, driver, clobber=True)


if __name__ == "__main__":
    install()
    sys.exit(main())

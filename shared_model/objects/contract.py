"""The contract of objects, and places by name. Standard library only."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Protocol

#: A folder or an object: a URL is text.
Location = str | Path

_FILE_URL = re.compile(r"(?:file|local)://(.*)", re.DOTALL)

_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
#: The end of an error's text, where a request was sent again in vain.
REPEATED = " (after {} retries)"
_REPEATED = re.compile(r"\(after [1-9]\d* retries\)")
#: The container of abfss://CONTAINER@ACCOUNT… stands where other URLs have a user.
_WITH_ACCOUNT = ("abfs", "abfss")


@dataclass(frozen=True)
class ObjectInfo:
    """`path`: relative to the root. `content_tag`: text that differs where the content does; empty where the store
    knows none."""

    path: str
    size: int
    modified: datetime
    content_tag: str = ""


def is_outage(problem: str) -> bool:
    """Whether an error's text, also one that quotes it, says that a service behind a URL did not answer or was busy:
    no other request is repeated."""
    return bool(_REPEATED.search(problem))


class Objects(Protocol):
    """Objects under one root, by their path with `/`. `root` is for messages.

    Raises: FileNotFoundError; OSError otherwise.
    """

    root: str

    def get(self, path: str) -> bytes: ...

    def open(self, path: str) -> BinaryIO:
        """For reading, here and there: only the ranges that are read are fetched."""

    def find(self, path: str) -> ObjectInfo | None: ...

    def folders(self, folder: str = "") -> list[str]:
        """Names of the folders in a folder that hold objects."""

    def list(self, folder: str = "", deep: bool = True) -> Iterator[ObjectInfo]:
        """All objects in a folder and, if `deep`, in those inside it, in no order; none without the folder."""

    def put(self, path: str, data: bytes) -> None:
        """Replace an object as a whole: a reader sees the old one or the new one."""

    def create(self, path: str, data: bytes) -> bool:
        """Put an object unless it exists; whether it now holds these bytes. Of several callers with bytes of their own,
        one gets True."""

    def delete(self, *paths: str) -> None:
        """An object that is not there is deleted already."""


def is_url(location: Location) -> bool:
    return "://" in str(location)


def join(folder: Location, *parts: str) -> Location:
    """A place in a folder, which is a path if the folder is one."""
    return Path(folder, *parts) if isinstance(folder, Path) else "/".join((folder.rstrip("/"), *parts))


def located(text: str) -> Location:
    """A setting as a place: a URL, or an absolute path. file:// means a path."""
    if match := _FILE_URL.fullmatch(text):
        text = match[1]
    return text.rstrip("/") if is_url(text) else Path(text).absolute()


def refusal(place: str) -> str:
    """Why a place cannot be served; empty for a path and for a URL that can. It shows no password."""
    scheme, _, rest = place.partition("://")
    if not is_url(place) or _FILE_URL.fullmatch(place):
        return ""
    if scheme not in _SCHEMES:
        return f"{scheme}:// is not served: s3://, gs://, az://, file:// and paths are"
    if "@" in rest and scheme not in _WITH_ACCOUNT:
        return "credentials come from the environment, not from a URL"
    return ""

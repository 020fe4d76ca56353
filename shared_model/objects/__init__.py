"""Objects: files in a folder of this machine, or behind a URL (s3://, gs://, az://), by the same few calls."""

from pathlib import Path
from typing import BinaryIO

from shared_model.objects.contract import Location, ObjectInfo, Objects, is_outage, is_url, join, located, refusal
from shared_model.objects.local import LocalObjects

__all__ = [
    "Location",
    "ObjectInfo",
    "Objects",
    "get",
    "is_outage",
    "is_url",
    "join",
    "located",
    "open_file",
    "open_objects",
    "put",
    "refusal",
]


def open_objects(root: Location) -> Objects:
    """Raises: ValueError for a URL that cannot be served, without showing what it holds for a password."""
    place = located(str(root))
    if isinstance(place, Path):
        return LocalObjects(place)
    # Steps that meet no URL, and Airflow's Python, do without obstore.
    from shared_model.objects.url import UrlObjects

    return UrlObjects(place)


def get(place: Location) -> bytes:
    """The bytes of one object. Raises: FileNotFoundError, OSError."""
    folder, name = _parts(place)
    return open_objects(folder).get(name)


def put(place: Location, data: bytes) -> None:
    """Replace one object. Raises: OSError."""
    folder, name = _parts(place)
    open_objects(folder).put(name, data)


def open_file(place: Location) -> BinaryIO:
    """One object, for reading here and there. Raises: FileNotFoundError, OSError."""
    folder, name = _parts(place)
    return open_objects(folder).open(name)


def _parts(place: Location) -> tuple[str, str]:
    folder, slash, name = str(place).rpartition("/")
    return folder or slash or ".", name

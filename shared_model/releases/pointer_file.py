"""The file copies of the release pointers: one file for the default model's, one for those of all other models."""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from shared_model.errors import ReleaseError
from shared_model.releases.files import Files, reason

#: The default model's pointer; those of the others, by model.
FILE, OTHERS = "ACTIVE.json", "MODELS.json"


def place(files: Files, model: str = "") -> str:
    """The location of a model's pointer, for messages."""
    return f"{files.root}/{OTHERS if model else FILE}"


def models(files: Files) -> list[str]:
    """The models in the second file. Raises: ReleaseError if it cannot be read."""
    try:
        return list(_others(files))
    except (ValueError, RecursionError) as error:
        raise ReleaseError(f"{place(files, OTHERS)} is damaged; copy it again, or remove it") from error
    except OSError as error:
        raise ReleaseError(f"{place(files, OTHERS)} cannot be read: {reason(error)}") from error


def read(files: Files, model: str) -> Any:
    """A model's pointer as it was written, unchecked. Raises: FileNotFoundError if it is not there; OSError;
    ValueError, RecursionError for a damaged file."""
    if not model:
        return json.loads(files.read(FILE))
    others = _others(files)
    if model not in others:
        raise FileNotFoundError(model)
    return others[model]


def write(files: Files, document: Mapping[str, Any], model: str) -> None:
    """To be called with the lock of the files; a damaged file is written anew. Raises: OSError."""
    if not model:
        files.write(FILE, json.dumps(document).encode())
        return
    others: Mapping[str, Any] = {}
    with contextlib.suppress(ValueError, RecursionError):
        others = _others(files)
    files.write(OTHERS, json.dumps({**others, model: document}).encode())


def _others(files: Files) -> Mapping[str, Any]:
    try:
        found = json.loads(files.read(OTHERS))
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict):
        raise ValueError(found)
    return found

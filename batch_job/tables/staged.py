"""Scores that wait for a person: the files of an attempt that a gate refused, and all that their commit needs.

The list of them lies beside the files, as `<stem>.staged`, where a sweep meets it in the listing that it makes anyway.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from batch_job.shards import shard_files
from batch_job.shards.shard_files import FileReport, Target
from shared_model.errors import JobError
from shared_model.objects import Location, ObjectInfo, open_objects

_ENDING = ".staged"


@dataclass(frozen=True)
class Staged:
    """Files that an attempt has written under `target`, and not committed. quarantined: reason → lines. facts: for the
    commit to hold. seconds: stage → seconds of the attempt. slots: tasks that scored at once. merged: the files that
    the commit names in place of `files`, which are shards; empty where it names those."""

    target: Target
    files: tuple[FileReport, ...]
    quarantined: Mapping[str, int]
    quarantine_version: int | None
    facts: Mapping[str, str]
    seconds: Mapping[str, float]
    slots: int
    merged: tuple[FileReport, ...] = ()

    @property
    def to_commit(self) -> tuple[FileReport, ...]:
        return self.merged or self.files

    def write(self) -> str:
        """Keep the files for a person to decide on; returns where the list of them is, relative to the table.

        Raises: JobError when it cannot be written.
        """
        data = json.dumps(asdict(self)).encode()
        digest = hashlib.sha256(data).hexdigest()
        path = self.target.path("staged", digest).removesuffix(".parquet") + _ENDING
        with shard_files.writing(self.target, path):
            open_objects(self.target.table).put(path, data)
        return path

    def check_there(self) -> None:
        """Raises: JobError unless every file is there, as large as it was written."""
        sizes = {found.path: found.size for found in shard_files.in_folder(self.target)}
        gone = [file.path for file in self.to_commit if sizes.get(file.path) != file.size]
        if gone:
            raise JobError(
                f"{len(gone)} of {len(self.to_commit)} files that waited for a person are gone or changed, "
                f"{self.target.table}/{gone[0]} for one; score ds={self.target.ds} again"
            )


def read(folder: Location, path: str) -> Staged:
    """Raises: JobError where the list is gone or damaged."""
    try:
        return _read(folder, path)
    except (OSError, ValueError, TypeError, KeyError) as error:
        what = f"{folder}/{path}, which lists the scores that wait for a person"
        raise JobError(f"{what}, cannot be read: {error}; score the day again") from error


def remove(folder: Location, path: str) -> None:
    """Leave the files to the next sweeps."""
    open_objects(folder).delete(path)


def names(folder: Location, found: Iterable[ObjectInfo]) -> set[str]:
    """Names of the files that lists among `found` name. A damaged list names no file: those can no longer be committed.
    Raises: OSError."""
    named = set[str]()
    for path in (it.path for it in found if it.path.endswith(_ENDING)):
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):
            named |= {file.name for file in _read(folder, path).to_commit}
    return named


def _read(folder: Location, path: str) -> Staged:
    document = json.loads(open_objects(folder).get(path))
    # Those of earlier versions have no merged files.
    files, merged = (
        tuple(FileReport.from_json(json.dumps(it)) for it in document.pop(name, ())) for name in ("files", "merged")
    )
    # The table may be mounted elsewhere by now.
    target = replace(Target(**document.pop("target")), table=str(folder))
    return Staged(target, files, **document, merged=merged)

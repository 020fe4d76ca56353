"""A day's messages: found by the settings, checked, counted and fingerprinted."""

import hashlib
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from batch_job import identity
from batch_job.inputs import csv_records, delta, json_lines, lines, parquet
from batch_job.inputs.files import Folder
from batch_job.run_record import COLUMNS, Columns, Format, Input, InputFile
from batch_job.settings import DAY_FIELDS, InputSettings
from shared_model.errors import JobError, NoInput
from shared_model.settings import StateSettings

T = TypeVar("T")

_DELTA_LOG = "_delta_log"
#: Names of files that may hold messages, in a form that is read or in another one.
_MESSAGES = re.compile(
    r"\.(jsonl|ndjson|json|csv|tsv|parquet|avro|orc)(\.(gz|bz2|xz|zst|zstd|lz4|snappy|zip))?$", re.IGNORECASE
)
#: Files that are looked at side by side: hashing and requests leave Python free.
_FILES_AT_ONCE = 8


@dataclass(frozen=True)
class _Rules:
    """How files of a format are recognised, why one cannot be read (empty when it can), how many rows it has, and
    the type of its ids (empty when they are text)."""

    endings: tuple[str, ...]
    problem: Callable[..., str]
    rows: Callable[[BinaryIO], int]
    id_type: Callable[..., str] = lambda content, name: ""


_RULES = {
    Format.JSON_LINES: _Rules((".jsonl", ".jsonl.gz"), json_lines.problem, lines.count, id_type=json_lines.id_type),
    Format.CSV: _Rules((".csv", ".csv.gz"), csv_records.problem, csv_records.rows),
    Format.PARQUET: _Rules((".parquet",), parquet.problem, parquet.rows, parquet.id_type),
}


@dataclass(frozen=True)
class Source:
    """`path` may have its day in it, else the day is a partition of it: of a folder, or of a Delta table.

    `format`: None means what is found there.
    """

    path: str
    partition: str = "ds"
    format: Format | None = None
    columns: Columns = COLUMNS

    @classmethod
    def from_settings(cls, state: StateSettings, inputs: InputSettings) -> "Source":
        form = Format(inputs.input_format) if inputs.input_format else None
        return cls(identity.template(state, inputs), inputs.input_partition, form, inputs.columns)

    def read(self, ds: str) -> Input:
        """Check every file's schema, then count and fingerprint. Raises: NoInput naming where the messages should be;
        JobError naming what cannot be read and why."""
        fields = dict(zip(DAY_FIELDS, (ds, *ds.split("-")), strict=True))
        path, dated = self.path.format(**fields), identity.has_day(self.path)
        root = path.rstrip("/") or path
        if self.format is Format.DELTA or (self.format is None and Folder(root).is_there(_DELTA_LOG)):
            if not Folder(root).is_there(_DELTA_LOG):
                raise NoInput(f"no messages: {root} is no Delta table; write it, or check TANDEM_INPUT_PATH")
            table, names = delta.open_table(root), self.columns.names
            _refuse(root, delta.problem(table, names))
            files = delta.files(table, root, "" if dated else self.partition, ds, names)
            return _input(root, files, Format.DELTA, self.columns)
        return read_folder(root if dated else f"{root}/{self.partition}={ds}", self.columns, self.format)


def read_folder(location: str | Path, columns: Columns = COLUMNS, form: Format | None = None) -> Input:
    """A folder of files as one day. Raises: as Source.read."""
    folder = Folder(str(location))
    form, names = _found(folder, form)
    rules = _RULES[form]
    # All schemas before any content: a day that cannot be read fails in seconds.
    problem = partial(rules.problem, names=columns.names)
    _side_by_side(lambda name: _refuse(f"{folder.location}/{name}", folder.look(name, problem)), names)
    files = _side_by_side(lambda name: _fingerprinted(folder, name, rules, columns), names)
    return _input(folder.location, tuple(files), form, columns)


def _side_by_side(look: Callable[[str], T], names: list[str]) -> list[T]:
    """What `look` makes of each. Raises: the error of the first that has one, and begins no more."""
    pool = ThreadPoolExecutor(_FILES_AT_ONCE)
    try:
        return list(pool.map(look, names))
    finally:
        pool.shutdown(cancel_futures=True)


def _fingerprinted(folder: Folder, name: str, rules: _Rules, columns: Columns) -> InputFile:
    if (found := folder.find(name)) is None:
        raise JobError(f"{folder.location}/{name} went away while it was read; plan the run anew")
    rows = folder.look(name, rules.rows)
    id_type = folder.look(name, partial(rules.id_type, name=columns.id))
    return InputFile(name, found.size, found.content_tag or folder.sha256(name), rows, id_type)


def check_unchanged(planned: Input) -> None:
    """Raises: JobError when a planned file is gone or has another size. Contents are held by the count of rows."""
    folder = Folder(planned.folder)
    for file, path in zip(planned.files, planned.paths, strict=True):
        found = folder.find(file.name)
        if found is None or found.size != file.size:
            raise JobError(f"{path} changed after the run was planned ({file.size} bytes then); plan it anew")


def _found(folder: Folder, form: Format | None) -> tuple[Format, list[str]]:
    """The format and files of a folder: all files for a set format, else those with the endings of one format."""
    if not folder.is_there():
        raise NoInput(
            f"no messages: {folder.location} is not a folder; write the partition, or check TANDEM_MESSAGES and "
            "TANDEM_INPUT_PATH"
        )
    seen = folder.names()
    names = [name for name in seen if "/" not in name]
    messages = [name for name in seen if _MESSAGES.search(name)]
    if not form:
        form, names = _of_one_format(folder.location, names, messages)
    elif not names:
        raise NoInput(f"no messages: {folder.location} holds no file{_advice(messages)}")
    if unread := [name for name in messages if name not in {*names}]:
        raise JobError(
            f"{folder.location} holds {unread[0]} beside {names[0]} and would leave it out: messages are files of one "
            "format in the folder itself; move it, or begin its name with _"
        )
    return form, names


def _of_one_format(location: str, names: list[str], messages: list[str]) -> tuple[Format, list[str]]:
    known = {form: [name for name in names if name.endswith(rules.endings)] for form, rules in _RULES.items()}
    found = {form: names for form, names in known.items() if names}
    if len(found) > 1:
        raise JobError(f"{location} holds {' and '.join(found)} files; say which by TANDEM_INPUT_FORMAT")
    if not found:
        endings = ", ".join(ending for rules in _RULES.values() for ending in rules.endings)
        raise NoInput(f"no messages: {location} holds no file that ends in {endings}{_advice(messages)}")
    return next(iter(found.items()))


def _advice(messages: list[str]) -> str:
    """About a folder in which no file is read, by the names of files there that may hold messages."""
    for name in messages:
        if "/" in name:
            return f"; {name} lies in a folder inside it: put its messages into the folder itself"
        if name.removesuffix(".gz").endswith((".json", ".ndjson")):
            return f"; if {name} has an object in each line, set TANDEM_INPUT_FORMAT=jsonl"
    return ""


def _refuse(path: str, problem: str) -> None:
    if problem:
        raise JobError(f"{path} {problem}; nothing was scored: TANDEM_INPUT_ID, _TEXT and _PAIR name the columns")


def _input(location: str, files: tuple[InputFile, ...], form: Format, columns: Columns) -> Input:
    if not any(file.lines for file in files):
        raise NoInput(f"no messages: all files of {location} are empty ({len(files)}); check what writes them")
    # Other columns make other texts of the same bytes.
    named = [str(form), columns.names, [[file.name, file.size, file.sha256] for file in files]]
    return Input(location, files, hashlib.sha256(json.dumps(named).encode()).hexdigest(), form, columns)

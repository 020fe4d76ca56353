"""The run record: the one JSON file through which a run's steps speak to each other. Standard library only.

planned ──score──▶ committed ──publish──▶ published
   │  │               ▲                      ▲
   │  └──score──▶ unchanged ─────publish─────┘
   ├──score──▶ stale      a newer attempt owns the partition; final
   └──score──▶ failed     score may be tried again
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class State(StrEnum):
    PLANNED = "planned"
    COMMITTED = "committed"
    UNCHANGED = "unchanged"
    PUBLISHED = "published"
    STALE = "stale"
    FAILED = "failed"


@dataclass(frozen=True)
class InputFile:
    """`lines` counts what a reader of JSON Lines sees, empty lines included."""

    name: str
    size: int
    sha256: str
    lines: int


@dataclass(frozen=True)
class Input:
    """The files a run reads. Files that arrive after planning belong to a later run."""

    folder: str
    files: tuple[InputFile, ...]
    fingerprint: str

    @property
    def lines(self) -> int:
        return sum(file.lines for file in self.files)

    @property
    def paths(self) -> list[str]:
        return [os.path.join(self.folder, file.name) for file in self.files]


@dataclass(frozen=True)
class Runtime:
    """The Python that planned the run; driver and workers must run on the same."""

    prefix: str
    python: str


@dataclass(frozen=True)
class Scoring:
    """What the committed partition holds and, unless it was unchanged, what computing it took.

    quarantined: reason → lines. seconds: stage → seconds, of this run. tokens: without padding.
    padding_share: padding over all tokens run.
    """

    token: int
    plan_id: str
    table_version: int
    rows: int
    quarantined: Mapping[str, int]
    quarantine_version: int | None = None
    precision: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    rows_per_second: float = 0.0
    tokens: int = 0
    padding_share: float = 0.0
    finished_at: str = ""


@dataclass(frozen=True)
class Publication:
    """`moved`: this step moved the pointer. `live`: the epoch is the one that answers; `why` says, in words, why not.

    left_out: texts, the rarest, that its memory had no room for. covered: share of the day's rows whose text is in it.
    bytes: of Redis' memory; 0 where this step wrote nothing.
    """

    epoch: str
    keys: int
    moved: bool
    live: bool
    why: str = ""
    left_out: int = 0
    covered: float = 1.0
    bytes: int = 0


@dataclass(frozen=True)
class RunRecord:
    """`token` is that of the latest attempt at scoring, 0 before the first. `drained`: deferred requests answered."""

    ds: str
    run_id: str
    planned_at: str
    release: str
    runtime: Runtime
    input: Input
    state: State = State.PLANNED
    token: int = 0
    scoring: Scoring | None = None
    drained: int = 0
    publication: Publication | None = None
    problem: str = ""


class RecordError(Exception):
    """A run record is missing or damaged."""


def write(path: Path, record: RunRecord) -> None:
    """Replace the record in one rename: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(dataclasses.asdict(record), indent=1) + "\n")
    temporary.replace(path)


def read(path: Path) -> RunRecord:
    """Raises: RecordError naming the file and what to do."""
    try:
        return _record(json.loads(path.read_text()))
    except FileNotFoundError as error:
        raise RecordError(f"{path} is not there; run `python -m batch_job plan` first") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} cannot be read as a run record; plan the run anew") from error


def _record(document: dict[str, Any]) -> RunRecord:
    source, scoring, publication = (document.pop(name) for name in ("input", "scoring", "publication"))
    files = tuple(InputFile(**file) for file in source.pop("files"))
    return RunRecord(
        runtime=Runtime(**document.pop("runtime")),
        input=Input(files=files, **source),
        state=State(document.pop("state")),
        scoring=Scoring(**scoring) if scoring else None,
        publication=Publication(**publication) if publication else None,
        **document,
    )

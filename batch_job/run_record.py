"""The run record: the one JSON file that a run's steps exchange. Standard library only.

planned ──score──▶ committed ──publish──▶ published
   │  │               │ ▲                    ▲
   │  └──score──▶ unchanged ─────publish─────┘
   ├──score──▶ stale              a newer attempt owns the day; final
   └──score──▶ refused, failed    score may be tried again
                  └──commit──▶ committed: a person accepts what a gate refused
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from shared_model import objects
from shared_model.objects import Location


class State(StrEnum):
    """The status of a run. Record, log, summary, page and JSON use these words and no others.

    planned    its input is known and its release pinned; nothing is scored
    refused    a gate, or too many quarantined lines, kept its scores from being committed; it may be scored again, and
               while `RunRecord.staged` names them a person may have them committed
    failed     an error ended it; none of its scores are committed; it may be scored again
    stale      a newer attempt owns the day; final
    committed  its scores are the day's in the table; they are not published, or their epoch is not live
    unchanged  the same, and an earlier run with the same input and release had committed them: nothing was scored
    published  its scores are committed, and `publish` made their epoch live

    A day of the table is committed or not. An epoch is live, which means that it answers online, or not live, and then
    `Publication.why` says why.
    """

    PLANNED = "planned"
    REFUSED = "refused"
    FAILED = "failed"
    STALE = "stale"
    COMMITTED = "committed"
    UNCHANGED = "unchanged"
    PUBLISHED = "published"


class Format(StrEnum):
    JSON_LINES = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    DELTA = "delta"


@dataclass(frozen=True)
class Columns:
    """The input's names of a message's columns. `pair`: the second text; empty where a row holds one text."""

    id: str = "id"
    text: str = "text"
    pair: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.id, self.text, self.pair) if self.pair else (self.id, self.text)


#: The names without settings.
COLUMNS = Columns()


@dataclass(frozen=True)
class InputFile:
    """`lines`: its rows. Lines of JSON Lines and records of CSV count where they are empty too.

    `sha256`: of its bytes, or in its place the tag of its content that its store knows; empty for files of a Delta
    table, which never change once they are written. `id_type`: the type of ids that are read as text (`inputs.ids`);
    empty where they are text.
    """

    name: str
    size: int
    sha256: str
    lines: int
    id_type: str = ""


#: The identity of the archive in STATE/messages, and of what an earlier version planned.
ARCHIVE = "the default archive"


@dataclass(frozen=True)
class Input:
    """The files a run reads. Files that arrive after planning belong to a later run.

    `folder`: as Spark is told, a URL perhaps; of a Delta table its root. `identity`: of what input this is a day
    (`batch_job.identity`).
    """

    folder: str
    files: tuple[InputFile, ...]
    fingerprint: str
    format: Format = Format.JSON_LINES
    columns: Columns = COLUMNS
    identity: str = ARCHIVE

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
class Worker:
    """A process that computed, and how many rows."""

    pid: int
    rows: int


class Outcome(StrEnum):
    """The outcome of a gate. `report-only`: too few rows or texts to judge; `unproven`: it could not be measured."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    REPORT_ONLY = "report-only"
    UNPROVEN = "unproven"


@dataclass(frozen=True)
class Verdict:
    """The verdict of one gate on a partition that is not committed yet. `bound`, in words, is the limit of `value`;
    `line` is the whole verdict in one line. `accepted`: a person lets a failure pass."""

    gate: str
    outcome: Outcome
    value: float | None
    bound: str
    line: str
    accepted: bool = False

    @property
    def refuses(self) -> bool:
        return self.outcome is Outcome.FAIL and not self.accepted


@dataclass(frozen=True)
class Agreement:
    """INT8 against half precision: texts compared, those on which both say the same, and of both numbers the part on
    which half precision is clear. `head`: of a release with several, the one that the clear texts are of."""

    texts: int
    agreeing: int
    clear: int
    clear_agreeing: int
    head: str = ""

    @property
    def share(self) -> float:
        return self.agreeing / self.texts if self.texts else 0.0

    @property
    def clear_share(self) -> float:
        return self.clear_agreeing / self.clear if self.clear else 0.0


@dataclass(frozen=True)
class QuarantinedLine:
    """An example of a quarantined line. `file`: the input file that it is from, by name; `raw`: its beginning."""

    reason: str
    file: str
    raw: str


@dataclass(frozen=True)
class Findings:
    """The rows that an attempt wrote, as the gate saw them, whether or not they were then committed.

    labels: label → rows, and `labels_before` those of the day it is held against, `before`. lengths: rows by tokens,
    the first number those of 1 to LENGTH_STEP. quarantined: reason → lines. pace: rows per second of all workers
    together, in equal parts of `pace_seconds` each. quarantined_examples: a few of the quarantined lines.
    """

    rows: int
    labels: Mapping[str, int]
    lengths: tuple[int, ...]
    quarantined: Mapping[str, int] = field(default_factory=dict)
    before: str = ""
    labels_before: Mapping[str, int] = field(default_factory=dict)
    agreement: Agreement | None = None
    pace: tuple[float, ...] = ()
    pace_seconds: float = 0.0
    verdicts: tuple[Verdict, ...] = ()
    quarantined_examples: tuple[QuarantinedLine, ...] = ()


#: Tokens of one step of `Findings.lengths`.
LENGTH_STEP = 4


@dataclass(frozen=True)
class Scoring:
    """The committed partition and, unless it was unchanged, the cost of computing it.

    quarantined: reason → lines. seconds: stage → seconds, of this run. distinct: rows that engines ran for all of them;
    tokens: theirs, without padding. padding_share: padding over all tokens run. began_at: when the first engine got
    texts, finished_at: when the partition was committed. content: the hash of the rows (`schemas.content`). units:
    shards of the partition; units_resumed: those adopted from an earlier attempt. rows_reused: rows whose text was
    scored in the committed baseline. slots: tasks that scored at once, 0 in a record without it.
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
    distinct: int = 0
    workers: tuple[Worker, ...] = ()
    began_at: str = ""
    content: str = ""
    units: int = 0
    units_resumed: int = 0
    rows_reused: int = 0
    slots: int = 0

    @property
    def computed(self) -> bool:
        """Whether this run's engines scored anything: adopted or already committed rows have no speed."""
        return self.distinct > 0

    @property
    def rows_taken_over(self) -> int:
        """Rows in the shards that an earlier attempt had left."""
        return self.rows - sum(worker.rows for worker in self.workers) if self.units_resumed else 0

    @property
    def tokens_per_second(self) -> float:
        """Of all workers together while there was something to score, padding left out; 0 where nothing was."""
        took = self.seconds.get("score", 0.0)
        return self.tokens / took if took else 0.0

    @property
    def scored_per_second(self) -> float:
        """Rows of all workers together while there was something to score; 0 where nothing was."""
        took = self.seconds.get("score", 0.0)
        return sum(worker.rows for worker in self.workers) / took if took else 0.0

    @property
    def busy_share(self) -> float | None:
        """The part of that time in which the devices of all slots computed; None where the record does not say."""
        available = self.seconds.get("score", 0.0) * self.slots
        # Records of earlier versions hold only how long workers were at it.
        busy = self.seconds.get("workers device busy", self.seconds.get("workers ran", 0.0))
        return busy / available if available else None


@dataclass(frozen=True)
class Publication:
    """`moved`: this step moved the pointer. `live`: the epoch is the one that answers; `why` says, in words, why not.

    left_out: texts, the rarest, that its memory had no room for. covered: share of the day's rows whose text is in it.
    bytes: of Redis' memory; 0 where this step wrote nothing. bound: bytes that one epoch may take, 0 in a record that
    does not say.
    """

    epoch: str
    keys: int
    moved: bool
    live: bool
    why: str = ""
    left_out: int = 0
    covered: float = 1.0
    bytes: int = 0
    bound: int = 0


@dataclass(frozen=True)
class Approval:
    """A person had the scores committed that a gate refused. `at`: when, in UTC; `comment`: theirs, in one line."""

    by: str
    at: str
    comment: str = ""


@dataclass(frozen=True)
class RunRecord:
    """`token` is that of the latest attempt at scoring, 0 before the first. `drained`: deferred requests answered.
    `findings` are those of the latest attempt that came as far as the gate. `problem`: why the latest attempt committed
    nothing or, of one that did, why deferred requests were left waiting. `staged`: where the list of its scores is,
    relative to the scores table, while they wait for a person; `approval`: that person's."""

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
    findings: Findings | None = None
    staged: str = ""
    approval: Approval | None = None

    @property
    def waits(self) -> bool:
        """Whether a person may have its scores committed; again where committing them failed."""
        return bool(self.staged) and self.state in (State.REFUSED, State.FAILED)


class RecordError(Exception):
    """A run record is missing or damaged, or could not be written."""


def write(path: Location, record: RunRecord) -> None:
    """Replace the record as a whole: a reader sees the old one or the new one. Raises: RecordError."""
    try:
        objects.put(path, (json.dumps(dataclasses.asdict(record), indent=1) + "\n").encode())
    except OSError as error:
        raise RecordError(f"{path} could not be written: {error.strerror}") from error


def read(path: Location) -> RunRecord:
    """Raises: RecordError naming the file and what to do."""
    try:
        return _record(json.loads(objects.get(path)))
    except FileNotFoundError as error:
        raise RecordError(f"{path} is not there; run `python -m batch_job plan` first") from error
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error
    except (ImportError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} cannot be read as a run record; plan the run anew") from error


def _scoring(document: dict[str, Any]) -> Scoring:
    workers = tuple(Worker(worker["pid"], worker["rows"]) for worker in document.pop("workers", ()))
    return Scoring(workers=workers, **document)


def _findings(document: dict[str, Any]) -> Findings:
    verdicts = tuple(Verdict(outcome=Outcome(it.pop("outcome")), **it) for it in document.pop("verdicts"))
    agreement = document.pop("agreement")
    return Findings(
        lengths=tuple(document.pop("lengths")),
        pace=tuple(document.pop("pace")),
        agreement=Agreement(**agreement) if agreement else None,
        verdicts=verdicts,
        quarantined_examples=tuple(QuarantinedLine(**it) for it in document.pop("quarantined_examples", ())),
        **document,
    )


def _record(document: dict[str, Any]) -> RunRecord:
    source, scoring, publication = (document.pop(name) for name in ("input", "scoring", "publication"))
    findings, approval = document.pop("findings", None), document.pop("approval", None)
    files = source.pop("files")
    for file in files:
        # Earlier versions noted whether the pages of a Parquet file have checksums.
        file.pop("unchecked", None)
    columns, form = Columns(**source.pop("columns", {})), Format(source.pop("format", Format.JSON_LINES))
    published, state = Publication(**publication) if publication else None, State(document.pop("state"))
    if state is State.PUBLISHED and published and not published.live:
        # Earlier versions called a run published whose epoch was not made live.
        state = State.COMMITTED
    return RunRecord(
        runtime=Runtime(**document.pop("runtime")),
        input=Input(files=tuple(InputFile(**file) for file in files), columns=columns, format=form, **source),
        state=state,
        scoring=_scoring(scoring) if scoring else None,
        publication=published,
        findings=_findings(findings) if findings else None,
        approval=Approval(**approval) if approval else None,
        **document,
    )

"""A release that scores data frames: as a function of `mapInArrow`, as a function of SQL, or by a call of its own."""

import itertools
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from batch_job.dataframes import libraries, pinning
from batch_job.dataframes.bar import progress_bar
from batch_job.dataframes.columns import SCORE_COLUMNS, SCORE_COLUMNS_DDL, Values, score_batches, values_of
from batch_job.scoring import models
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import NightlySettings
from batch_job.spark import gpus, task_context
from shared_model import devices, settings
from shared_model.errors import BadInput
from shared_model.settings import StateSettings
from shared_model.types import Device

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

#: Rows of a local frame that are tokenised and cut into batches together.
WINDOW_ROWS = 16_384
#: A process has one model open, and a call has all cores.
_ONE_CALL = threading.Lock()

Frame = TypeVar("Frame")


def scorer(model: str | Path = "", text: str = "text", pair: str = "", id: "str | StructField" = "id") -> "Scorer":
    """A scorer of one release, which is chosen now and stays.

    `model`: a model's name, whose active release is meant; a release's id; or the path or URL of a release or of a
    store, whose default model is meant. "": the default model. Settings come from the environment, as for the nightly
    run; executors of Spark must reach the store under the same path or URL. `text`, `pair`: columns. `id`: that of a
    Spark frame's ids, which are then returned as text, or its field, `frame.schema["id"]`: then with their type.

    Raises: ReleaseError; SettingError; BadInput where the release reads pairs of texts and `pair` is not set.
    """
    given = str(model.absolute()) if isinstance(model, Path) else model
    state, release = pinning.pin(given, settings.load(StateSettings))
    pairs = release.manifest.reads.pairs
    _check_pair(release.id, pairs, pair)
    nightly = settings.load(NightlySettings)
    # The device is that of the process that scores.
    options = ScoringOptions.from_settings(state, nightly, release.id, Device.CPU)
    return Scorer(options, (text, pair) if pairs else (text,), ((id, "string") if isinstance(id, str) else _kept(id),))


@dataclass(frozen=True)
class Scorer:
    """`texts`: names of the columns of a row's texts. `kept`: names and types of the columns of a Spark frame that are
    returned beside the scores.

    Each process opens the model once, at its first text. A Spark task scores on the GPU that Spark gave it, else on its
    cores; `score` on the GPU or all cores of this host.
    """

    options: ScoringOptions = field(repr=False)
    texts: tuple[str, ...]
    kept: tuple[tuple[str, str], ...]

    @property
    def release(self) -> str:
        return self.options.release

    @property
    def schema(self) -> str:
        """Of the rows that it returns in Spark."""
        return ", ".join([*(f"`{name}` {kind}" for name, kind in self.kept), SCORE_COLUMNS_DDL])

    def keeping(self, schema: "StructType") -> "Scorer":
        """The same scorer, which returns all columns of a Spark frame of this schema instead of the id.

        Raises: BadInput where one of them is named like a column of scores.
        """
        kept = tuple(_kept(field) for field in schema.fields)
        _refuse_scores([name for name, _ in kept])
        return replace(self, kept=kept)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `frame.mapInArrow(scorer, scorer.schema)`."""
        read = deque[list[pa.Array]]()

        def values() -> Iterator[Values]:
            for batch in batches:
                read.append([_as_kept(name, _column(batch, name), kind) for name, kind in self.kept])
                yield [values_of(_column(batch, name)) for name in self.texts]

        names = [*(name for name, _ in self.kept), *SCORE_COLUMNS.names]
        for scores in self.score_in_task(values()):
            yield pa.RecordBatch.from_arrays([*read.popleft(), *scores.columns], names=names)

    def score_in_task(self, batches: Iterator[Values]) -> Iterator[pa.RecordBatch]:
        """The columns of scores of each batch, in a task of Spark; one without texts opens no model."""
        first = next(batches, None)
        if first is None:
            return
        options = self._on(Device.CUDA if gpus.given() else Device.CPU)
        model = models.open_model(options, task_context.task_threads())
        yield from score_batches(itertools.chain([first], batches), model, options)

    def score(self, frame: Frame, text: str = "", pair: str = "", progress: bool | None = None) -> Frame:
        """A pandas, Polars or Arrow frame → the same frame with columns of scores. `text`, `pair`: columns, where they
        are others than the scorer's. `progress`: whether a bar is shown; None: in notebooks and on terminals.

        Raises: BadInput for a frame or columns that do not fit; ReleaseError; JobError where too many texts cannot be
        scored, so that the fault is the release's.
        """
        library, pairs = libraries.library(frame), len(self.texts) > 1
        _check_pair(self.release, pairs, pair or self.texts[-1] * pairs)
        texts = [other or own for other, own in zip((text, pair), self.texts, strict=False)]
        names = library.names(frame)
        _refuse_scores(names)
        for name in texts:
            _require(names, name)
        columns = [library.values(frame, name) for name in texts]
        return library.beside(frame, self._score_here(columns, progress))  # type: ignore[no-any-return]

    def udf(self) -> Any:
        """A function of SQL and of Spark columns: a text, or two where the release reads pairs → a struct of scores."""
        from batch_job.dataframes.udf import scoring_udf

        return scoring_udf(self.score_in_task, pairs=len(self.texts) > 1)

    def __repr__(self) -> str:
        return f"Scorer({self.release!r}, texts={self.texts})"

    def _score_here(self, columns: Values, progress: bool | None) -> pa.Table:
        rows = len(columns[0])
        parts = ([column[at : at + WINDOW_ROWS] for column in columns] for at in range(0, rows, WINDOW_ROWS))
        options = self._on(devices.detect())
        with _ONE_CALL, progress_bar(rows, progress) as advance:
            model = models.open_model(options, devices.cores())

            def scored(window: int, done: int) -> None:
                advance(window * WINDOW_ROWS + done)

            # Invalid rows count at the end of all.
            found = list(score_batches(parts, model, options, scored))
            advance(rows)
        return pa.Table.from_batches(found, SCORE_COLUMNS)

    def _on(self, device: Device) -> ScoringOptions:
        return replace(self.options, device=device)


def _check_pair(release: str, pairs: bool, pair: str) -> None:
    if pair and not pairs:
        raise BadInput("pair", f"is set, but release {release} reads single texts")
    if pairs and not pair:
        raise BadInput(
            "pair", f"is not set, and release {release} reads pairs of texts: say which column has the second"
        )


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    _require(batch.schema.names, name)
    return batch.column(name)


def _kept(field: "StructField") -> tuple[str, str]:
    return field.name, field.dataType.simpleString()


def _as_kept(name: str, column: pa.Array, kind: str) -> pa.Array:
    """As it is, or as text. Raises: BadInput where text is asked for and the column's values have none."""
    if kind != "string" or pa.types.is_string(column.type):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowException as error:
        asked = f"`id=frame.schema[{name!r}]` returns them as they are"
        raise BadInput("frame", f"has column {name!r} as {column.type}, whose values are no text: {asked}") from error


def _require(names: Sequence[object], name: str) -> None:
    if (times := [*names].count(name)) == 1:
        return
    if times:
        raise BadInput("frame", f"has {times} columns {name!r}; rename or drop the others")
    has = ", ".join(map(str, names)) or "none"
    raise BadInput("frame", f"has no column {name!r}, and has {has}; say which one by its name")


def _refuse_scores(names: Sequence[object]) -> None:
    if both := sorted(name for name in SCORE_COLUMNS.names if name in names):
        raise BadInput("frame", f"has a column {both[0]}, as the scores have; rename or drop it")

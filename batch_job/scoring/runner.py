"""Encodings → scores, batch by batch: around what cannot be scored, and within the memory of the device."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from batch_job.progress import log
from batch_job.scoring.batching import Cutting
from batch_job.scoring.bisection import Failure, isolate_failures
from batch_job.scoring.ceilings import DeviceKey
from shared_model.batches import Running
from shared_model.encoding import Encoding, TokenBatch
from shared_model.engine import Engine
from shared_model.errors import JobError, OutOfMemory
from shared_model.heads import Heads
from shared_model.types import TOP_K

#: A batch that any engine can run.
HARMLESS = TokenBatch(np.ones((16, 32), np.int64), np.ones((16, 32), np.int64))


#: Rows whose answers are found at once. Of those of one batch each operation would cost more to start than to run.
_ROWS_TOGETHER = 4096


class _Unscored(Exception):
    """The engine raised an error or returned a NaN or an infinity; the message tells which."""


@dataclass
class Outcomes:
    """The outcomes of encodings, row for row. `raw`: (rows, width), what the engine gave, until `answer`. `indices` and
    `scores`: (rows, kept), as `Heads.best` keeps TOP_K. `batch_rows`: rows of the engine batch each ran in.
    `abstained`: (rows, heads), by all scores of each. `poisoned`: rows that fail by themselves, and hold no answer.
    `padded_tokens`: tokens that ran for the others, padding included. `seconds`: that the device computed."""

    raw: NDArray[np.float32]
    indices: NDArray[np.int32]
    scores: NDArray[np.float32]
    batch_rows: NDArray[np.int32]
    abstained: NDArray[np.bool_]
    poisoned: list[int] = field(default_factory=list)
    padded_tokens: int = 0
    seconds: float = 0.0

    @classmethod
    def blank(cls, rows: int, heads: Heads) -> "Outcomes":
        shape = (rows, heads.kept(TOP_K)[-1].stop)
        return cls(
            np.zeros((rows, heads.width), np.float32),
            np.zeros(shape, np.int32),
            np.zeros(shape, np.float32),
            np.zeros(rows, np.int32),
            np.zeros((rows, len(heads.specs)), bool),
        )

    def answer(self, heads: Heads) -> None:
        """Find the answers in what the engine gave, which is then gone."""
        for start in range(0, len(self.raw), _ROWS_TOGETHER):
            rows = slice(start, start + _ROWS_TOGETHER)
            scores = heads.scores(self.raw[rows])
            self.indices[rows], self.scores[rows] = heads.best(scores, TOP_K)
            self.abstained[rows] = heads.abstained(scores)
        self.raw = self.raw[:0]


class Job:
    """Texts that are scored together, and their outcomes. They come in parts. `progress` gets the share of them that is
    done, after each batch."""

    def __init__(self, texts: int, heads: Heads, progress: Callable[[float], None] = lambda share: None) -> None:
        self.encodings: list[Encoding] = []
        self.outcomes = Outcomes.blank(texts, heads)
        self._texts = texts
        self._progress = progress
        self._planned = self._done = self._tokens = self._done_tokens = 0

    @property
    def ended(self) -> bool:
        return self._done == self._texts

    def add(self, encodings: Sequence[Encoding]) -> None:
        self.encodings += encodings
        self._tokens += sum(encoding.tokens for encoding in encodings)

    def cut(self, cutting: Cutting) -> list[Sequence[int]]:
        """The next batches, as rows."""
        first = self._planned
        planned = cutting.plan(self.lengths(range(first, len(self.encodings))), len(self.encodings) == self._texts)
        self._planned += sum(map(len, planned))
        return [[first + row for row in rows] for rows in planned]

    def lengths(self, rows: Iterable[int]) -> list[int]:
        return [self.encodings[row].tokens for row in rows]

    def done(self, rows: Sequence[int]) -> None:
        """Note texts as done: long ones may run first, and those that are not read yet have no known length."""
        self._done += len(rows)
        self._done_tokens += sum(self.lengths(rows))
        self._progress(self._done_tokens / self._tokens * len(self.encodings) / self._texts)


class _Begun(NamedTuple):
    """A batch under way."""

    job: Job
    rows: Sequence[int]
    running: Running


@dataclass(frozen=True)
class _Raised:
    """A batch that did not even begin."""

    error: Exception
    seconds: float = 0.0

    def result(self) -> NDArray[np.float32]:
        raise self.error


class Runner:
    """Runs what one task scores. `most_poison`: texts of the task that may fail by themselves."""

    def __init__(self, where: DeviceKey, engine: Engine, heads: Heads, most_poison: int, cutting: Cutting) -> None:
        self._where = where
        self._engine = engine
        self._heads = heads
        self._most_poison = most_poison
        self._poison = 0
        self._cutting = cutting
        self._begun = deque[_Begun]()

    def run(self, parts: Iterable[tuple[Job, Sequence[Encoding]]]) -> Iterator[Job]:
        """Score every text once, but those that fail in any batch. Parts of a job come together and in order; each job
        is returned when it has ended, while the engine computes what follows.

        Raises: JobError where more of them fail than may, or the engine cannot even run what any can: the fault is then
        the release's or the device's; and where a single text does not fit the device's memory.
        """
        jobs = deque[Job]()
        for job, encodings in parts:
            if not jobs or jobs[-1] is not job:
                jobs.append(job)
            job.add(encodings)
            for rows in job.cut(self._cutting):
                self._begun.append(_Begun(job, rows, self._begin(job, rows)))
                if len(self._begun) > self._engine.ahead:
                    self._finish(*self._begun.popleft())
                    yield from self._ended(jobs)
            yield from self._ended(jobs)
        while self._begun:
            self._finish(*self._begun.popleft())
            yield from self._ended(jobs)

    def _ended(self, jobs: deque[Job]) -> Iterator[Job]:
        """The first jobs that have ended, which are then removed."""
        while jobs and jobs[0].ended:
            jobs[0].outcomes.answer(self._heads)
            yield jobs.popleft()

    def _begin(self, job: Job, rows: Sequence[int]) -> Running:
        try:
            return self._engine.start(self._cutting.batch([job.encodings[row] for row in rows]))
        except Exception as error:  # noqa: BLE001 (it is the batch's outcome, and judged when its turn comes)
            if isinstance(error, OutOfMemory):
                self._cutting.did_not_fit(job.lengths(rows))
            return _Raised(error)

    def _finish(self, job: Job, rows: Sequence[int], running: Running) -> None:
        left = self._most_poison - self._poison
        outcomes = isolate_failures(partial(self._score, job, [running]), rows, _Unscored, left)
        failures = {row: it.error for row, it in zip(rows, outcomes, strict=True) if isinstance(it, Failure)}
        if failures:
            self._judge(list(failures.values()))
            job.outcomes.poisoned += failures
            lengths = ", ".join(map(str, job.lengths(failures)))
            log(f"texts of {lengths} tokens cannot be scored: {next(iter(failures.values()))}")
        job.done(rows)

    def _score(self, job: Job, begun: list[Running], rows: Sequence[int]) -> Sequence[int]:
        """Score rows of one batch, in as many as the device's memory wants; returns them. `begun`: the batch of all
        these rows, if it is under way. Raises: _Unscored."""
        left = rows
        while left:
            part = left if begun else left[: self._cutting.fitting(job.lengths(left))]
            running = begun.pop() if begun else self._begin(job, part)
            try:
                raw = self._raw(running)
            except OutOfMemory as error:
                if len(part) == 1:
                    [tokens] = job.lengths(part)
                    raise JobError(
                        self._problem(f"a text of {tokens} tokens does not fit the memory: {error}")
                    ) from error
                if not isinstance(running, _Raised):
                    # It began, so nothing has noted it yet: ranks of an engine tell how a batch ended.
                    self._cutting.did_not_fit(job.lengths(part))
                continue
            self._keep(job, part, raw, running.seconds)
            left = left[len(part) :]
        return rows

    def _keep(self, job: Job, rows: Sequence[int], raw: NDArray[np.float32], seconds: float) -> None:
        ran = job.outcomes
        ran.raw[rows] = raw
        ran.batch_rows[rows] = len(rows)
        ran.padded_tokens += self._cutting.size(job.lengths(rows))
        ran.seconds += seconds

    def _raw(self, running: Running) -> NDArray[np.float32]:
        try:
            raw = running.result()
        except OutOfMemory:
            raise
        except Exception as error:
            raise _Unscored(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
        if not np.isfinite(raw).all():
            raise _Unscored("a score is NaN or infinite")
        return raw

    def _judge(self, errors: Sequence[Exception]) -> None:
        """Raises: JobError where it is not the texts that are at fault."""
        self._poison += len(errors)
        if self._poison > self._most_poison:
            some = f"{self._poison} texts cannot be scored, each by itself ({errors[-1]}), and {self._most_poison} may"
            raise JobError(self._problem(f"{some}; nothing was committed")) from errors[-1]
        try:
            self._raw(self._harmless())
        except (_Unscored, OutOfMemory) as error:
            raise JobError(self._problem(f"nothing can be scored any more ({error}); nothing was committed")) from error

    def _harmless(self) -> Running:
        try:
            return self._engine.start(HARMLESS)
        except Exception as error:  # noqa: BLE001 (as in `_begin`)
            return _Raised(error)

    def _problem(self, problem: str) -> str:
        release, device = self._where
        return f"release {release} on {device}: {problem}"

"""Encodings → scores, batch by batch: around what cannot be scored, and within the memory of the device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from batch_job.progress import log
from batch_job.scoring.bisection import Failure, isolate_failures
from batch_job.scoring.ceilings import Ceilings
from shared_model.encoding import Encoding, TokenBatch, collate, fine_bucket, plan_batches
from shared_model.engine import Engine
from shared_model.errors import JobError, OutOfMemory
from shared_model.heads import Heads
from shared_model.types import TOP_K

#: A batch that any engine can run.
HARMLESS = TokenBatch(np.ones((16, 32), np.int64), np.ones((16, 32), np.int64))

#: Memory limits of the devices of this process.
_CEILINGS = Ceilings()


class _Unscored(Exception):
    """The engine raised an error or returned a NaN or an infinity; the message tells which."""


@dataclass
class Outcomes:
    """The outcomes of encodings, row for row. `indices` and `scores`: (rows, kept), as `Heads.best` keeps TOP_K.
    `batch_rows`: rows of the engine batch each ran in. `abstained`: (rows, heads), by all scores of each. `poisoned`:
    rows that fail by themselves, and hold nothing. `padded_tokens`: tokens that ran for the others, padding
    included."""

    indices: NDArray[np.int32]
    scores: NDArray[np.float32]
    batch_rows: NDArray[np.int32]
    abstained: NDArray[np.bool_]
    poisoned: list[int] = field(default_factory=list)
    padded_tokens: int = 0

    @classmethod
    def blank(cls, rows: int, heads: Heads) -> "Outcomes":
        shape = (rows, heads.kept(TOP_K)[-1].stop)
        return cls(
            np.zeros(shape, np.int32),
            np.zeros(shape, np.float32),
            np.zeros(rows, np.int32),
            np.zeros((rows, len(heads.specs)), bool),
        )


class Runner:
    """Runs what one task scores. `device` by name. `most_poison`: texts of the task that may fail by themselves."""

    def __init__(
        self,
        release: str,
        device: str,
        engine: Engine,
        heads: Heads,
        most_poison: int,
        ceilings: Ceilings = _CEILINGS,
    ) -> None:
        self._place = (release, device)
        self._engine = engine
        self._heads = heads
        self._most_poison = most_poison
        self._poison = 0
        self._ceilings = ceilings

    def run(
        self,
        encodings: Sequence[Encoding],
        most_rows: int,
        token_budget: int,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Outcomes:
        """Score every encoding once, in batches of one width, but those that fail in any batch. `progress` gets the
        number of tokens done, after each batch.

        Raises: JobError where more of them fail than may, or the engine cannot even run what any can: the fault is then
        the release's or the device's; and where a single text does not fit the device's memory.
        """
        ran, done = Outcomes.blank(len(encodings), self._heads), 0
        for rows in plan_batches([encoding.tokens for encoding in encodings], most_rows, token_budget, fine_bucket):
            left = self._most_poison - self._poison
            outcomes = isolate_failures(partial(self._score, encodings, ran), rows, _Unscored, left)
            failures = {row: it.error for row, it in zip(rows, outcomes, strict=True) if isinstance(it, Failure)}
            if failures:
                self._judge(list(failures.values()))
                ran.poisoned += failures
                lengths = ", ".join(str(encodings[row].tokens) for row in failures)
                log(f"texts of {lengths} tokens cannot be scored: {next(iter(failures.values()))}")
            done += sum(encodings[row].tokens for row in rows)
            progress(done)
        return ran

    def _score(self, encodings: Sequence[Encoding], ran: Outcomes, rows: Sequence[int]) -> Sequence[int]:
        """Score rows of one width, in as many batches as the device's memory wants; returns them. Raises: _Unscored."""
        tokens, left = encodings[rows[0]].tokens, rows
        while left:
            part = left[: self._ceilings.most(self._place, tokens, len(left))]
            batch = collate([encodings[row] for row in part], fine_bucket)
            try:
                scores = self._heads.scores(self._raw(batch))
            except OutOfMemory as error:
                if len(part) == 1:
                    raise JobError(
                        self._problem(f"a text of {tokens} tokens does not fit the memory: {error}")
                    ) from error
                self._ceilings.too_many(self._place, tokens, len(part))
                continue
            ran.indices[part], ran.scores[part] = self._heads.best(scores, TOP_K)
            ran.abstained[part] = self._heads.abstained(scores)
            ran.batch_rows[part] = len(part)
            ran.padded_tokens += batch.rows * batch.tokens
            left = left[len(part) :]
        return rows

    def _raw(self, batch: TokenBatch) -> NDArray[np.float32]:
        try:
            raw = self._engine.score(batch)
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
            self._raw(HARMLESS)
        except (_Unscored, OutOfMemory) as error:
            raise JobError(self._problem(f"nothing can be scored any more ({error}); nothing was committed")) from error

    def _problem(self, problem: str) -> str:
        release, device = self._place
        return f"release {release} on {device}: {problem}"

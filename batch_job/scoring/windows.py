"""Windows of texts → scores. One engine per Python worker; tokenisation runs ahead of it."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from batch_job.scoring.models import Model
from batch_job.scoring.options import ScoringOptions
from batch_job.scoring.prefetch import ahead
from batch_job.scoring.runner import Outcomes, Runner
from shared_model.encoding import Encoding, Text

#: Windows tokenised before the engine asks for them.
PREFETCH_DEPTH = 2


@dataclass(frozen=True)
class ScoredWindow:
    """One Arrow batch and its scores: row for row, but for the rows at `poisoned`, whose texts fail by themselves.
    `indices` and `scores`: (rows, kept), as `Heads.best` keeps TOP_K. `batch_rows`: rows of the engine batch each ran
    in. `abstained`: (rows, heads).

    `distinct`: rows that the engine ran for all of them; `tokens` and, with padding, `padded_tokens` of those.
    Seconds: `tokenised` in the thread that runs ahead, `waited` for the window to be read and tokenised, `ran` in the
    engine. `began`: Unix time at which the engine got the window.
    """

    batch: pa.RecordBatch
    poisoned: list[int]
    texts: list[Text]
    encodings: list[Encoding]
    indices: NDArray[np.int32]
    scores: NDArray[np.float32]
    batch_rows: NDArray[np.int32]
    abstained: NDArray[np.bool_]
    distinct: int
    tokens: int
    padded_tokens: int
    tokenised: float
    waited: float
    ran: float
    began: float

    @property
    def source(self) -> pa.RecordBatch:
        """The rows of the batch that were scored."""
        if not self.poisoned:
            return self.batch
        return self.batch.take(np.delete(np.arange(self.batch.num_rows), self.poisoned))


@dataclass(frozen=True)
class _Window:
    """Texts as the engine gets them: `encodings[places[row]]` is that of `texts[row]`."""

    batch: pa.RecordBatch
    texts: list[Text]
    encodings: list[Encoding]
    places: NDArray[np.intp]
    tokenised: float


def score_windows(
    batches: Iterator[pa.RecordBatch],
    texts_of: Callable[[pa.RecordBatch], list[Text]],
    model: Model,
    options: ScoringOptions,
    most_poison: int = 0,
    scored: Callable[[int], None] = lambda rows: None,
) -> Iterator[ScoredWindow]:
    """Score every batch. Reading and tokenising run ahead in a thread while the engine works. `scored` gets the
    number of rows scored so far, after each batch of the engine.

    Raises: JobError where more than `most_poison` texts fail by themselves, or one does not fit the device's memory.
    """

    def tokenised() -> Iterator[_Window]:
        for batch in batches:
            texts = texts_of(batch)
            run, places = deduplicated(texts) if options.deduplicate else (texts, np.arange(len(texts)))
            began = time.perf_counter()
            encodings = model.encoder.encode_many(run)
            yield _Window(batch, texts, encodings, places, tokenised=time.perf_counter() - began)

    runner = Runner(model.release, model.device, model.engine, model.heads, most_poison)
    idle_since = time.perf_counter()
    for window in ahead(tokenised(), PREFETCH_DEPTH):
        started, began = time.perf_counter(), time.time()
        tokens = sum(encoding.tokens for encoding in window.encodings)
        progress = partial(_rows_scored, scored, window.batch.num_rows, tokens)
        ran = runner.run(window.encodings, options.batch_rows, options.batch_tokens, progress)
        ended = time.perf_counter()
        yield _scored(window, ran, waited=started - idle_since, ran_for=ended - started, began=began)
        idle_since = time.perf_counter()


def _rows_scored(scored: Callable[[int], None], rows: int, tokens: int, done: int) -> None:
    """Rows by the share of their tokens that is done: long texts run first, and a text may stand for several rows."""
    scored(rows * done // tokens)


def _scored(window: _Window, ran: Outcomes, waited: float, ran_for: float, began: float) -> ScoredWindow:
    poisoned = np.isin(window.places, ran.poisoned)
    rows = np.flatnonzero(~poisoned)
    places, run = window.places[rows], np.delete(np.arange(len(window.encodings)), ran.poisoned)
    return ScoredWindow(
        batch=window.batch,
        poisoned=np.flatnonzero(poisoned).tolist(),
        texts=[window.texts[row] for row in rows],
        encodings=[window.encodings[place] for place in places],
        indices=ran.indices[places],
        scores=ran.scores[places],
        batch_rows=ran.batch_rows[places],
        abstained=ran.abstained[places],
        distinct=len(run),
        tokens=sum(window.encodings[place].tokens for place in run),
        padded_tokens=ran.padded_tokens,
        tokenised=window.tokenised,
        waited=waited,
        ran=ran_for,
        began=began,
    )


def deduplicated(texts: Sequence[Text]) -> tuple[list[Text], NDArray[np.intp]]:
    """Each text once, in the order they first come, and where each row's text is among them."""
    places: dict[Text, int] = {}
    row_places = [places.setdefault(text, len(places)) for text in texts]
    return list(places), np.array(row_places, np.intp)

"""Windows of texts → scores. One engine per Python worker; tokenisation runs ahead of it."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from batch_job.scoring import batching
from batch_job.scoring.batching import Cutting
from batch_job.scoring.models import Model
from batch_job.scoring.options import ScoringOptions
from batch_job.scoring.prefetch import ahead
from batch_job.scoring.runner import Job, Runner
from shared_model.encoding import Encoder, Encoding, Text

#: Windows, or parts of them, tokenised before the engine asks for them.
PREFETCH_DEPTH = 2


@dataclass(frozen=True)
class ScoredWindow:
    """One Arrow batch and its scores: row for row, but for the rows at `poisoned`, whose texts fail by themselves.
    `indices` and `scores`: (rows, kept), as `Heads.best` keeps TOP_K. `batch_rows`: rows of the engine batch each ran
    in. `abstained`: (rows, heads).

    `distinct`: rows that the engine ran for all of them; `tokens` and, with padding, `padded_tokens` of those.
    Seconds: `tokenised` in the thread that runs ahead, `waited` for the window to be read and tokenised, `ran` in the
    engine and around it, `device_busy` as the device itself says. `began`: Unix time at which the engine got the
    window.
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
    device_busy: float
    began: float

    @property
    def source(self) -> pa.RecordBatch:
        """The rows of the batch that were scored."""
        if not self.poisoned:
            return self.batch
        return self.batch.take(np.delete(np.arange(self.batch.num_rows), self.poisoned))


@dataclass
class _Window:
    """Texts as the engine gets them: `run[places[row]]` for `texts[row]`. They come in parts, for all of which `waited`
    and `tokenised` are."""

    batch: pa.RecordBatch
    texts: list[Text]
    run: list[Text]
    places: NDArray[np.intp]
    job: Job
    tokenised: float = 0.0
    waited: float = 0.0
    began: float = 0.0


def score_windows(
    batches: Iterator[pa.RecordBatch],
    texts_of: Callable[[pa.RecordBatch], list[Text]],
    model: Model,
    options: ScoringOptions,
    most_poison: int = 0,
    scored: Callable[[int, int], object] = lambda number, rows: None,
) -> Iterator[ScoredWindow]:
    """Score every batch. Reading and tokenising run ahead in a thread while the engine works. Where the engine is a
    device that computes by itself, it works ahead of the caller, too. `scored` gets the number of a window, from 0, and
    of its rows scored so far, after each batch of the engine.

    Raises: JobError where more than `most_poison` texts fail by themselves, or one does not fit the device's memory.
    """
    where = (model.release, model.device)
    rule = batching.cutting(model.engine, where, options.batch_rows, options.batch_tokens, options.state)
    runner = Runner(where, model.engine, model.heads, most_poison, rule)

    def windows() -> Iterator[_Window]:
        for number, batch in enumerate(batches):
            texts = texts_of(batch)
            run, places = deduplicated(texts) if options.deduplicate else (texts, np.arange(len(texts)))
            progress = partial(_rows_scored, partial(scored, number), len(texts))
            yield _Window(batch, texts, run, places, Job(len(run), model.heads, progress))

    ready = _ready(ahead(_tokenised(windows(), model.encoder, rule), PREFETCH_DEPTH), runner)
    return ahead(ready, 1) if model.engine.ahead else ready


def _rows_scored(scored: Callable[[int], object], rows: int, share: float) -> None:
    scored(int(rows * share))


def _tokenised(windows: Iterator[_Window], encoder: Encoder, rule: Cutting) -> Iterator[tuple[_Window, list[Encoding]]]:
    """Windows in parts, as the rule wants them; one without texts is one part without any."""
    for window in windows:
        step = rule.texts_ahead or len(window.run)
        for start in range(0, max(1, len(window.run)), max(1, step)):
            began = time.perf_counter()
            encodings = encoder.encode_many(window.run[start : start + step])
            window.tokenised += time.perf_counter() - began
            yield window, encodings


def _ready(tokenised: Iterator[tuple[_Window, list[Encoding]]], runner: Runner) -> Iterator[ScoredWindow]:
    """Windows that have been scored, in their order, which is that of their jobs."""
    windows = deque[_Window]()

    def parts() -> Iterator[tuple[Job, list[Encoding]]]:
        asked = time.perf_counter()
        for window, encodings in tokenised:
            if not windows or windows[-1] is not window:
                window.began = time.time()
                windows.append(window)
            window.waited += time.perf_counter() - asked
            yield window.job, encodings
            asked = time.perf_counter()

    resumed = time.perf_counter()
    for _ in runner.run(parts()):
        yield _scored(windows.popleft(), time.perf_counter() - resumed)
        resumed = time.perf_counter()


def _scored(window: _Window, seconds: float) -> ScoredWindow:
    """`seconds` since the window before was done with."""
    ran, encodings = window.job.outcomes, window.job.encodings
    poisoned = np.isin(window.places, ran.poisoned)
    rows = np.flatnonzero(~poisoned)
    places, run = window.places[rows], np.delete(np.arange(len(encodings)), ran.poisoned)
    return ScoredWindow(
        batch=window.batch,
        poisoned=np.flatnonzero(poisoned).tolist(),
        texts=[window.texts[row] for row in rows],
        encodings=[encodings[place] for place in places],
        indices=ran.indices[places],
        scores=ran.scores[places],
        batch_rows=ran.batch_rows[places],
        abstained=ran.abstained[places],
        distinct=len(run),
        tokens=sum(encodings[place].tokens for place in run),
        padded_tokens=ran.padded_tokens,
        tokenised=window.tokenised,
        waited=window.waited,
        # The first part of a window may be waited for while the window before it ends.
        ran=max(0.0, seconds - window.waited),
        device_busy=ran.seconds,
        began=window.began,
    )


def deduplicated(texts: Sequence[Text]) -> tuple[list[Text], NDArray[np.intp]]:
    """Each text once, in the order they first come, and where each row's text is among them."""
    places: dict[Text, int] = {}
    row_places = [places.setdefault(text, len(places)) for text in texts]
    return list(places), np.array(row_places, np.intp)

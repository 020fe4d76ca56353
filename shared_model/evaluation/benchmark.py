"""Runs a variant for its evaluation: scores of all texts, and the duration of a call."""

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from shared_model.encoding import Encoding, InputSpec, TokenBatch, collate, plan_batches
from shared_model.engine import Engine
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.output import Floats, Scoring
from shared_model.types import Precision

#: (rows, tokens) of the latency profile: single texts of every length, and a full batch of short ones.
SHAPES = ((1, 8), (1, 16), (1, 32), (1, 64), (1, 128), (1, 256), (64, 32))
#: A shape is timed for at least these runs, then until this total time or this many runs.
_MIN_RUNS, _MIN_SECONDS, _MAX_RUNS = 3, 0.05, 50
#: A median over budget is measured again up to this often, and the best counts: a busy machine can make a fast variant
#: look slow, but never a slow one fast.
_RETRIES = 5


@dataclass(frozen=True)
class Latency:
    """Median time of one call with `rows` texts, each of `tokens` tokens, on `threads` threads."""

    threads: int
    rows: int
    tokens: int
    milliseconds: float


@dataclass(frozen=True)
class Budget:
    """The longest permitted call of one shape. `setting`: the environment variable that sets it."""

    rows: int
    tokens: int
    milliseconds: float
    setting: str


def budget_of(precision: Precision, bounds: GateSettings) -> Budget | None:
    """The budget of the lane that runs a precision; None for fp32, which no lane runs."""
    if precision is Precision.FP32:
        return None
    if precision is Precision.INT8:
        return Budget(1, 32, bounds.gate_latency_ms, "TANDEM_GATE_LATENCY_MS")
    return Budget(64, 32, bounds.gate_batch_ms, "TANDEM_GATE_BATCH_MS")


def score_all(engine: Engine, output: Scoring, encodings: Sequence[Encoding], what: str = "scoring") -> Floats:
    """Scores (texts, width) at temperature 1, in the order of `encodings`. Raises: ValueError for another shape."""
    scores, uncalibrated = np.empty((len(encodings), output.width), np.float32), output.uncalibrated
    with tqdm(total=len(encodings), desc=what, unit="text", disable=None) as progress:
        for rows in plan_batches([e.tokens for e in encodings], max_rows=64, token_budget=2048):
            raw = engine.score(collate([encodings[row] for row in rows]))
            if raw.shape != (len(rows), output.width):
                raise ValueError(f"gives an array of {raw.shape} where {(len(rows), output.width)} was due")
            scores[rows] = uncalibrated.scores(raw)
            progress.update(len(rows))
    return scores


def latency_profile(
    engine: Engine, reads: InputSpec, what: str = "timing", shapes: Iterable[tuple[int, int]] = SHAPES
) -> tuple[Latency, ...]:
    """Time every shape that the model can read."""
    possible = [shape for shape in shapes if shape[1] <= reads.max_tokens]
    with tqdm(possible, desc=what, unit="shape", disable=None) as progress:
        return tuple(Latency(engine.width, *shape, _milliseconds(engine, reads, *shape)) for shape in progress)


def over_budget(engine: Engine, reads: InputSpec, budget: Budget) -> str | None:
    """The failure text of a call over budget, else None."""
    tokens = min(budget.tokens, reads.max_tokens)
    best = _milliseconds(engine, reads, budget.rows, tokens)
    for _ in range(_RETRIES):
        if best <= budget.milliseconds:
            return None
        best = min(best, _milliseconds(engine, reads, budget.rows, tokens))
    if best <= budget.milliseconds:
        return None
    call = f"{budget.rows}×{tokens} tokens on {engine.width} threads"
    return f"takes {best:.1f} ms for {call}, its lane allows {budget.milliseconds:g} ms ({budget.setting})"


def _milliseconds(engine: Engine, reads: InputSpec, rows: int, tokens: int) -> float:
    # The first call at a shape builds its kernels.
    engine.warm_up([(rows, tokens)])
    ones = np.ones((rows, tokens), np.int64)
    batch = TokenBatch(ones, ones, np.zeros_like(ones) if reads.types else None)
    seconds: list[float] = []
    while len(seconds) < _MIN_RUNS or (sum(seconds) < _MIN_SECONDS and len(seconds) < _MAX_RUNS):
        started = time.perf_counter()
        engine.score(batch)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1000

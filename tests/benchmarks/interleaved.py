"""Times of several engines on one shape, called in turns: a busy moment meets all of them alike."""

import time
from collections.abc import Mapping

import numpy as np

from shared_model.encoding import TokenBatch
from shared_model.engine import Engine


def seconds(engines: Mapping[str, Engine], rows: int, tokens: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each engine's calls, but for a first one that warms it up. A single text runs as in the latency lane:
    on a graph that is specialised for its width."""
    single = rows == 1
    for engine in engines.values():
        if single:
            engine.specialise(tokens)
    batch = TokenBatch(np.ones((rows, tokens), np.int64), np.ones((rows, tokens), np.int64))
    taken: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds + 1):
        for name, engine in engines.items():
            began = time.perf_counter()
            engine.score(batch, single)
            taken[name].append(time.perf_counter() - began)
    return {name: found[1:] for name, found in taken.items()}

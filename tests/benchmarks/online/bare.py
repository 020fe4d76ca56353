"""python -m tests.benchmarks.online.bare RELEASES ID: a release's engines with nothing around them.

The baseline of the service: the same engines on the same texts, in a process of their own, called by a loop.
Texts are encoded before the watch starts; engines are opened, and have met every shape, before it starts, too.
"""

import functools
import itertools
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from realtime_service.settings import ServiceSettings, lanes
from shared_model import devices
from shared_model.encoding import TokenBatch, collate, plan_batches
from shared_model.engine import Engine
from shared_model.releases.store import Release, Store
from shared_model.types import Device, Precision, ServingPath
from tests.load import child

#: Above this, the time to work out shapes is a small part of a call, and what is compiled for one width costs memory.
_SPECIALISED_TOKENS = 64


class Bare:
    """Answers the benchmark's questions; each public method is one.

    `width`: threads of a call; `streams`: calls at once.
    """

    def __init__(self, release: Release) -> None:
        self._release = release
        self._encoder = release.encoder()

    def ask(self, what: str, **arguments: Any) -> Mapping[str, float]:
        answered: Mapping[str, float] = getattr(self, what)(**arguments)
        return answered

    def single(self, texts: Sequence[str], width: int, pause: float = 0.0) -> dict[str, float]:
        """One text at a time, `pause` seconds after the one before: median ms."""
        batches = [collate([encoding]) for encoding in self._encoder.encode_many(list(texts))]
        engine, milliseconds = self._ready(Precision.INT8, 1, width, batches), []
        for batch in batches:
            if pause:
                time.sleep(pause)
            started = time.perf_counter()
            engine.score(batch, single=True)
            milliseconds.append(1000 * (time.perf_counter() - started))
        return {"p50_ms": statistics.median(milliseconds)}

    def saturated(self, texts: Sequence[str], streams: int, width: int, seconds: float) -> dict[str, float]:
        """One text at a time on each stream: texts per second, ms of CPU a text."""
        batches = [collate([encoding]) for encoding in self._encoder.encode_many(list(texts))]
        return _saturate(self._ready(Precision.INT8, streams, width, batches), batches, seconds, single=True)

    def bulk(self, texts: Sequence[str], streams: int, width: int, seconds: float) -> dict[str, float]:
        """Half precision, 64 rows of similar length in each batch: texts per second, ms of CPU a text."""
        lane = lanes(ServiceSettings(), devices.detect())[ServingPath.THROUGHPUT]
        encodings = self._encoder.encode_many(list(texts))
        plan = plan_batches([encoding.tokens for encoding in encodings], lane.max_rows, lane.token_budget)
        # Batches differ in length: a part of them, taken as it comes, must be like all.
        batches = random.Random(0).sample([collate([encodings[row] for row in rows]) for rows in plan], len(plan))
        return _saturate(self._ready(lane.precision, streams, width, batches), batches, seconds, single=False)

    def tokenise(self, texts: Sequence[str]) -> dict[str, float]:
        """ms of CPU a text."""
        cpu = time.process_time()
        for text in texts:
            self._encoder.encode(text)
        return {"cpu_ms": 1000 * (time.process_time() - cpu) / len(texts)}

    def _ready(self, precision: Precision, streams: int, width: int, batches: Sequence[TokenBatch]) -> Engine:
        """An engine at its best: compiled for short single texts, and no shape is new to it."""
        engine = self._engine(precision, streams, width)
        for rows, tokens in sorted({(batch.rows, batch.tokens) for batch in batches}):
            if precision is Precision.INT8 and tokens <= _SPECIALISED_TOKENS:
                engine.specialise(tokens)
            engine.warm_up([(rows, tokens)])
        return engine

    @functools.cache  # noqa: B019 - lives as long as its process
    def _engine(self, precision: Precision, streams: int, width: int) -> Engine:
        device = Device.CPU if precision is Precision.INT8 else devices.detect()
        return self._release.engine(precision, device, width, streams)


def _saturate(engine: Engine, batches: Sequence[TokenBatch], seconds: float, single: bool) -> dict[str, float]:
    shared, cpu, started = itertools.cycle(batches), time.process_time(), time.perf_counter()

    def score_until_over(_: int) -> int:
        rows = 0
        while time.perf_counter() < started + seconds:
            rows += len(engine.score(next(shared), single))
        return rows

    with ThreadPoolExecutor(engine.streams) as pool:
        rows = sum(pool.map(score_until_over, range(engine.streams)))
    took = time.perf_counter() - started
    return {"rate": rows / took, "cpu_ms": 1000 * (time.process_time() - cpu) / rows}


def main(releases: str, release_id: str) -> None:
    child.answer({}, Bare(Store(releases).open(release_id)).ask)


if __name__ == "__main__":
    main(*sys.argv[1:])

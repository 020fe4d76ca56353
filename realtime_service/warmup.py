"""Engines made ready: opened, every likely shape run once, their profiles measured."""

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from realtime_service.scheduling.profile import Measurement, Profile
from shared_model.encoding import TokenBatch
from shared_model.engine import Engine
from shared_model.releases.store import Release
from shared_model.types import Device, Precision

#: Shapes (rows, tokens): what a single text meets, and batches up to the token budget.
_SINGLE_SHAPES = tuple((1, tokens) for tokens in range(8, 257, 8))
_BATCH_SHAPES = tuple(
    (rows, tokens) for rows in (2, 4, 8, 16, 32, 64) for tokens in (16, 32, 128) if rows * tokens <= 2048
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WarmEngine:
    engine: Engine
    profile: Profile


def warm_engines(
    release: Release, precisions: Iterable[Precision], half_device: Device, threads: int
) -> dict[Precision, WarmEngine]:
    """Open, warm and measure an engine per precision. Takes seconds; call it off the event loop.

    INT8 runs on CPU; half precision on `half_device`.
    """
    warm = {}
    for precision in sorted(set(precisions)):
        device = Device.CPU if precision is Precision.INT8 else half_device
        engine = release.engine(precision, device, threads)
        profile = measure(engine, _SINGLE_SHAPES + _BATCH_SHAPES)
        log.info("%s on %s is warm: 1×16 in %.1f ms", precision, device, profile.predict(1, 16) * 1000)
        warm[precision] = WarmEngine(engine, profile)
    return warm


def measure(engine: Engine, shapes: Sequence[tuple[int, int]]) -> Profile:
    """Run every shape twice, once to build its kernels and once on the watch, and fit a profile to the latter."""
    engine.warm_up(shapes)
    measurements = []
    for rows, tokens in shapes:
        batch = TokenBatch(np.ones((rows, tokens), np.int64), np.ones((rows, tokens), np.int64))
        started = time.perf_counter()
        engine.score(batch)
        measurements.append(Measurement(rows, tokens, time.perf_counter() - started))
    return Profile.fit(measurements)

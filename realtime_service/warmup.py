"""Engines made ready: opened, every likely shape run and judged, their profiles measured."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from realtime_service.scheduling.profile import Measurement, Profile
from shared_model.encoding import TOKEN_STEP, Encoding, Reads, TokenBatch, collate, padded
from shared_model.engine import Engine
from shared_model.errors import ReleaseError, TandemError
from shared_model.releases.store import Release
from shared_model.types import Device, Precision

#: Batches (rows, tokens) up to the token budget that a profile is fitted to.
_BATCH_SHAPES = tuple(
    (rows, tokens) for rows in (2, 4, 8, 16, 32, 64) for tokens in (16, 32, 128) if rows * tokens <= 2048
)

#: Called before every step of a warm-up: returns when the device has time for it, raises to give up.
Turn = Callable[[], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WarmEngine:
    engine: Engine
    profile: Profile


def shapes(reads: Reads) -> list[tuple[int, int]]:
    """(rows, tokens) to warm: every width a single text can meet, then batches. Small ones first."""
    singles = [(1, tokens) for tokens in range(TOKEN_STEP, padded(reads.max_tokens) + 1, TOKEN_STEP)]
    return singles + [(rows, tokens) for rows, tokens in _BATCH_SHAPES if tokens <= reads.max_tokens]


def warm_engines(
    release: Release, variants: Mapping[Precision, Device], threads: int, turn: Turn
) -> dict[Precision, WarmEngine]:
    """Open, warm and measure an engine per variant. Takes seconds; call it off the event loop.

    Raises: ReleaseError; what `turn` raises. Nothing stays open then.
    """
    warm = {}
    with contextlib.ExitStack() as opened:
        for precision, device in sorted(variants.items()):
            turn()
            engine = open_variant(release, precision, device, threads)
            opened.callback(engine.close)
            warm[precision] = WarmEngine(engine, measure(engine, release, turn))
            seconds = warm[precision].profile.predict(1, 16)
            log.info("%s: %s on %s is warm: 1×16 in %.1f ms", release.id, precision, device, seconds * 1000)
        opened.pop_all()
    return warm


def open_variant(release: Release, precision: Precision, device: Device, threads: int) -> Engine:
    """Raises: ReleaseError, whatever the engine's framework raised."""
    try:
        return release.engine(precision, device, threads)
    except TandemError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ReleaseError(f"release {release.id}: its {precision} variant cannot be opened: {why}") from error


def measure(engine: Engine, release: Release, turn: Turn) -> Profile:
    """Run every shape twice, once to build its kernels and once on the watch, and fit a profile to the latter.

    Raises: ReleaseError where the engine's output is not what the release says it is.
    """
    measurements = []
    for rows, tokens in shapes(release.manifest.reads):
        batch = _blank(rows, tokens, release.manifest.reads)
        turn()
        judge(engine.score(batch), batch, release)
        turn()
        started = time.perf_counter()
        engine.score(batch)
        measurements.append(Measurement(rows, tokens, time.perf_counter() - started))
    return Profile.fit(measurements)


def judge(raw: NDArray[np.float32], batch: TokenBatch, release: Release) -> None:
    """Raises: ReleaseError where raw outputs are not finite numbers of shape (rows, width of the release's output)."""
    expected = (batch.rows, release.output.width)
    if raw.shape != expected:
        raise ReleaseError(f"release {release.id}: the outputs have the shape {raw.shape}, should have {expected}")
    if not np.isfinite(raw).all():
        raise ReleaseError(f"release {release.id}: some outputs are not finite numbers")


def _blank(rows: int, tokens: int, reads: Reads) -> TokenBatch:
    one = np.ones(tokens, np.int32)
    return collate([Encoding(one, truncated=False, types=np.zeros_like(one) if reads.types else None)] * rows)

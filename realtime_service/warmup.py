"""Variants made ready: engines opened, every shape a lane can meet run and judged, their speeds measured."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from realtime_service.scheduling.profile import Measurement, Profile, Speeds
from realtime_service.settings import Lane
from shared_model.encoding import Encoding, Reads, TokenBatch, collate, ladder
from shared_model.engine import Engine
from shared_model.errors import ReleaseError, TandemError
from shared_model.releases.store import Release
from shared_model.types import Device, Precision

#: Widths of single texts that engines are compiled for: most chat messages. Each holds weights of its own (45 MB of
#: all-MiniLM-L6-v2 for two streams), and above them the time to work out shapes is a small part of a call.
SPECIALISED_TOKENS = (8, 16, 24)
#: Tokens of a batch up to which shapes are warmed; no lane makes larger ones by default.
_BATCH_TOKENS = 2048
#: Widths at which batches are timed: the profile is a line between them.
_TIMED_TOKENS = (8, 16, 32, 64, 128)

#: Called before every step of a warm-up: returns when the device has time for it, raises to give up.
Turn = Callable[[], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Width:
    """`threads`: cores of a call on CPU that has the device for itself. `streams`: calls at once, on one core each."""

    threads: int
    streams: int


@dataclass(frozen=True)
class WarmVariant:
    """`narrow` runs a call on each stream at once; `wide` runs one with all cores, None where that is the same.

    `speeds` are those of lanes that make batches, `single_speeds` those of a lane that never does.
    """

    narrow: Engine
    wide: Engine | None
    speeds: Speeds
    single_speeds: Speeds

    def speeds_of(self, lane: Lane) -> Speeds:
        return self.single_speeds if lane.max_rows == 1 else self.speeds

    def close(self) -> None:
        for engine in (self.narrow, self.wide):
            if engine:
                engine.close()


def single_shapes(reads: Reads) -> list[tuple[int, int]]:
    """(rows, tokens) of every single text, short ones first."""
    return [(1, tokens) for tokens in ladder(reads.max_tokens)]


def batch_shapes(engine: Engine, reads: Reads) -> list[tuple[int, int]]:
    """(rows, tokens) of every batch that an engine is worth, small ones first."""
    shapes = [(rows, tokens) for tokens in ladder(reads.max_tokens) for rows in engine.rows(tokens)[1:]]
    return sorted(shape for shape in shapes if shape[0] * shape[1] <= _BATCH_TOKENS)


def open_variant(release: Release, precision: Precision, device: Device, width: Width, turn: Turn) -> WarmVariant:
    """A variant that may run any single text. Takes a second or two; call it off the event loop.

    Raises: ReleaseError; what `turn` raises. Nothing stays open then.
    """
    with contextlib.ExitStack() as opened:
        turn()
        narrow = open_engine(release, precision, device, 1 if width.streams > 1 else width.threads, width.streams)
        opened.callback(narrow.close)
        profile = _measured(narrow, release, single_shapes(release.manifest.reads), turn)
        wide, wide_profile = None, None
        if precision is Precision.INT8 and narrow.streams > 1:
            # Half precision is what bulk runs in: many calls, whose sum is what counts.
            turn()
            wide = open_engine(release, precision, device, width.threads)
            opened.callback(wide.close)
            wide_profile = _measured(wide, release, single_shapes(release.manifest.reads), turn)
        opened.pop_all()
    seconds = profile.predict(1, 16)
    log.info("%s: %s on %s is open: 1×16 in %.1f ms", release.id, precision, device, seconds * 1000)
    speeds = Speeds(profile, wide_profile, narrow.rows)
    return WarmVariant(narrow, wide, speeds, speeds.copy())


def warm_batches(variant: WarmVariant, release: Release, turn: Turn) -> None:
    """Warm and measure every batch. Raises: ReleaseError; what `turn` raises."""
    variant.speeds.narrow.refit(
        _measurements(variant.narrow, release, batch_shapes(variant.narrow, release.manifest.reads), turn)
    )


def specialise(variant: WarmVariant, release: Release, turn: Turn) -> None:
    """Compile for the widths of most texts of a lane that never makes batches.

    Only where a call has one core: more of them gain nothing on texts that short. Such a text never has all cores then,
    because its numbers must not depend on the load. Raises: ReleaseError; what `turn` raises.
    """
    for tokens in (it for it in SPECIALISED_TOKENS if it <= release.manifest.reads.max_tokens):
        turn()
        variant.narrow.specialise(tokens)
        timed = _timed(variant.narrow, release, 1, tokens, turn, single=True)
        variant.single_speeds.narrow.replace_single(tokens, timed.seconds)
        if wide := variant.single_speeds.wide:
            wide.replace_single(tokens, math.inf)


def open_engine(release: Release, precision: Precision, device: Device, threads: int, streams: int = 1) -> Engine:
    """Raises: ReleaseError, whatever the engine's framework raised."""
    try:
        return release.engine(precision, device, threads, streams)
    except TandemError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ReleaseError(f"release {release.id}: its {precision} variant cannot be opened: {why}") from error


def _measured(engine: Engine, release: Release, shapes: Iterable[tuple[int, int]], turn: Turn) -> Profile:
    return Profile.fit(_measurements(engine, release, shapes, turn))


def _measurements(engine: Engine, release: Release, shapes: Iterable[tuple[int, int]], turn: Turn) -> list[Measurement]:
    """Run every shape on every stream, to build its kernels, then judge it and time those that tell of the others.

    Raises: ReleaseError where the engine's output is not what the release says it is.
    """
    found = []
    for rows, tokens in shapes:
        turn()
        engine.warm_up([(rows, tokens)])
        if rows > 1 and tokens not in _TIMED_TOKENS:
            continue
        found.append(_timed(engine, release, rows, tokens, turn))
    return found


def _timed(engine: Engine, release: Release, rows: int, tokens: int, turn: Turn, single: bool = False) -> Measurement:
    batch = _blank(rows, tokens, release.manifest.reads)
    turn()
    started = time.perf_counter()
    raw = engine.score(batch, single)
    seconds = time.perf_counter() - started
    judge(raw, batch, release)
    return Measurement(rows, tokens, seconds)


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

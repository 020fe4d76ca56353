"""Warm-up of variants: opens engines, runs and checks every shape that a lane can meet, fits latency models."""

import contextlib
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from realtime_service.scheduling.latency_model import LatencyModel, Measurement, VariantLatency
from realtime_service.scheduling.scheduler import BULK
from realtime_service.settings import Lane
from shared_model.encoding import Encoding, InputSpec, TokenBatch, coarse_buckets, collate
from shared_model.engine import Engine
from shared_model.errors import ReleaseError, TandemError
from shared_model.releases.store import Release
from shared_model.types import WHOLE, Device, Precision, Spread

#: Widths of single texts that engines are compiled for: they cover most chat messages. Each takes memory (25 to 34 MB
#: of all-MiniLM-L6-v2 a stream), so shorter texts are padded to the next one. For longer texts, shape inference is a
#: small part of a call, and padding takes more: one of 48 tokens 4.1 ms as 64, 3.6 without a graph of its own.
SPECIALISED_TOKENS = (16, 32)
#: Those of these widths that are compiled for all cores, too: they cover most texts.
WIDE_TOKENS = (16,)
#: Most tokens of a warmed batch; no lane makes larger ones by default.
_BATCH_TOKENS = 2048
#: Widths at which batches are timed: the latency model is a line through them. A start waits for all of these calls.
_TIMED_TOKENS = (16, 64)
#: Timed calls of which the fastest counts, of short single texts. If a delayed call counted, admission control might
#: reject texts of its width for ever. Longer texts and batches, which a start waits for, are timed less often.
_SHORT_CALLS, _LONG_CALLS = 3, 2
#: Most tokens of a short text.
_SHORT_TOKENS = 64
#: Tokens from which on a batch is timed once: a delay is a small part of it, and of the line.
_ONCE_TOKENS = 512

#: Called before every step of a warm-up: returns when the device has time for it, raises to abandon the warm-up.
Turn = Callable[[], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Width:
    """`threads`: cores of a call on CPU that runs alone. `streams`: concurrent calls, which share them. `beside`: calls
    of bulk work that run beside those and yield to them."""

    threads: int
    streams: int
    beside: int = 0

    @staticmethod
    def on(device: Device, cores: int, spreads: Iterable[Spread] = ()) -> "Width":
        """`spreads`: of the models on this device. One stream per core of a CPU; on a GPU one, and one for bulk work
        beside it; where a model is cut into stages, as many as stages."""
        stages = max((spread.stages for spread in spreads), default=1)
        if stages > 1 or device is Device.CPU:
            return Width(cores, stages if stages > 1 else cores)
        return Width(cores, 1, int(all(spread.ranks == 1 for spread in spreads)))


@dataclass(frozen=True)
class WarmVariant:
    """`narrow`: runs one call per stream; `wide`: runs a single text on all cores, None where that is the same or not
    offered.

    `latency`: of lanes that make batches; `single_latency`: of a lane of single texts. `bulk`: runs bulk work beside
    `narrow`; None where that runs it itself.
    """

    narrow: Engine
    wide: Engine | None
    latency: VariantLatency
    single_latency: VariantLatency
    bulk: "BulkVariant | None" = None

    def latency_of(self, lane: Lane) -> VariantLatency:
        if self.bulk and lane.path in BULK:
            return self.bulk.latency
        return self.single_latency if lane.of_singles else self.latency

    def of_single(self, tokens: int) -> Engine:
        """The engine that runs a text of so many tokens which comes to an idle device."""
        return self.wide if self.wide and tokens <= max(WIDE_TOKENS) else self.narrow

    def close(self) -> None:
        for engine in (self.narrow, self.wide, self.bulk and self.bulk.engine):
            if engine:
                engine.close()


@dataclass(frozen=True)
class BulkVariant:
    engine: Engine
    latency: VariantLatency


def single_shapes(reads: InputSpec) -> list[tuple[int, int]]:
    """(rows, tokens) of all single texts, short ones first."""
    return [(1, tokens) for tokens in coarse_buckets(reads.max_tokens)]


def batch_shapes(engine: Engine, reads: InputSpec) -> list[tuple[int, int]]:
    """(rows, tokens) of all batches that an engine is warmed for, small ones first."""
    shapes = [(rows, tokens) for tokens in coarse_buckets(reads.max_tokens) for rows in engine.rows(tokens)[1:]]
    return sorted(shape for shape in shapes if shape[0] * shape[1] <= _BATCH_TOKENS)


def open_variant(
    release: Release, precision: Precision, device: Device, width: Width, turn: Turn, spread: Spread = WHOLE
) -> WarmVariant:
    """A variant that may run any single text. Takes a second or two; call it off the event loop.

    Raises: ReleaseError; the errors of `turn`. Nothing stays open then.
    """
    with contextlib.ExitStack() as opened:
        turn()
        threads = max(1, width.threads // width.streams)
        narrow = open_engine(release, precision, device, threads, width.streams, spread)
        opened.callback(narrow.close)
        latency_model = LatencyModel.fit(_measurements(narrow, release, single_shapes(release.manifest.reads), turn))
        latency = VariantLatency(latency_model, rows=narrow.rows)
        bulk = _open_bulk(narrow, release, turn, opened) if width.beside else None
        # Urgent single texts run in INT8 only; half precision is for bulk.
        urgent = precision is Precision.INT8
        wide = narrow.widened(width.threads) if urgent and narrow.streams > 1 else None
        opened.pop_all()
    log.info(
        "%s: %s on %s is open: 1×16 in %.1f ms", release.id, precision, device, latency_model.predict(1, 16) * 1000
    )
    alone = latency.copy(LatencyModel.of_singles() if wide else None, functools.partial(narrow.rows, single=True))
    return WarmVariant(narrow, wide, latency, alone, bulk)


def _open_bulk(narrow: Engine, release: Release, turn: Turn, opened: contextlib.ExitStack) -> BulkVariant | None:
    engine = narrow.beside()
    if engine is None:
        return None
    opened.callback(engine.close)
    singles = _measurements(engine, release, single_shapes(release.manifest.reads), turn)
    return BulkVariant(engine, VariantLatency(LatencyModel.fit(singles), rows=engine.rows))


def warm_batches(variant: WarmVariant, release: Release, turn: Turn) -> None:
    """Warm and time all batches. Raises: ReleaseError; the errors of `turn`."""
    timed = [(variant.narrow, variant.latency)]
    if variant.bulk:
        timed.append((variant.bulk.engine, variant.bulk.latency))
    for engine, latency in timed:
        shapes = batch_shapes(engine, release.manifest.reads)
        latency.narrow.refit(_measurements(engine, release, shapes, turn))


def specialise(variant: WarmVariant, release: Release, pairs: bool, turn: Turn) -> None:
    """Compile for the widths of most texts, for a lane of single texts; `pairs`: in which two may share a call.

    The scores of a specialised text are the same on one core and on all, alone and with another one, so an answer does
    not depend on the load. Raises: ReleaseError; the errors of `turn`.
    """
    widths = [it for it in SPECIALISED_TOKENS if it <= release.manifest.reads.max_tokens]
    latency = variant.single_latency
    graphs = [_Graph(variant.narrow, latency.narrow, *ends, pairs) for ends in itertools.pairwise([0, *widths])]
    if variant.wide and latency.wide:
        of_all = [0, *(it for it in widths if it in WIDE_TOKENS)]
        graphs += [_Graph(variant.wide, latency.wide, *ends, pairs=False) for ends in itertools.pairwise(of_all)]

    for graph in graphs:
        turn()
        graph.engine.specialise(graph.tokens, graph.pairs)
        # Before the next one, because an engine that serves already uses it, and by times of other graphs.
        _time_singles(graph, release, turn)


class _Graph(NamedTuple):
    """A graph of single texts of more tokens than `above`, up to `tokens`, and of two of them if `pairs`."""

    engine: Engine
    latency: LatencyModel
    above: int
    tokens: int
    pairs: bool


def _time_singles(graph: _Graph, release: Release, turn: Turn) -> None:
    """Time the texts that are padded to a graph's width, alone and as they share a call."""
    for tokens in coarse_buckets(graph.tokens):
        if tokens > graph.above:
            for rows in graph.engine.rows(tokens, single=True):
                graph.latency.replace(_timed(graph.engine, release, rows, tokens, turn, single=True))


def open_engine(
    release: Release, precision: Precision, device: Device, threads: int, streams: int = 1, spread: Spread = WHOLE
) -> Engine:
    """Raises: ReleaseError for any error of the engine's framework."""
    try:
        return release.engine(precision, device, threads, streams, spread)
    except TandemError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ReleaseError(f"release {release.id}: its {precision} variant cannot be opened: {why}") from error


def _measurements(engine: Engine, release: Release, shapes: Iterable[tuple[int, int]], turn: Turn) -> list[Measurement]:
    """Run every shape on every stream, which builds its kernels; check and time single texts and timed widths.

    Raises: ReleaseError if the engine's output is not as the release declares.
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
    seconds = []
    for _ in range(_timed_calls(rows, tokens, single)):
        turn()
        started = time.perf_counter()
        raw = engine.score(batch, single)
        seconds.append(time.perf_counter() - started)
        judge(raw, batch, release)
    return Measurement(rows, tokens, min(seconds))


def _timed_calls(rows: int, tokens: int, single: bool) -> int:
    if rows == 1 or single:
        return _SHORT_CALLS if tokens <= _SHORT_TOKENS else _LONG_CALLS
    return _LONG_CALLS if rows * tokens < _ONCE_TOKENS else 1


def judge(raw: NDArray[np.float32], batch: TokenBatch, release: Release) -> None:
    """Raises: ReleaseError if raw outputs are not finite numbers of shape (rows, width of all heads)."""
    expected = (batch.rows, release.heads.width)
    if raw.shape != expected:
        raise ReleaseError(f"release {release.id}: the outputs have the shape {raw.shape}, should have {expected}")
    if not np.isfinite(raw).all():
        raise ReleaseError(f"release {release.id}: some outputs are not finite numbers")


def _blank(rows: int, tokens: int, reads: InputSpec) -> TokenBatch:
    one = np.ones(tokens, np.int32)
    return collate([Encoding(one, truncated=False, types=np.zeros_like(one) if reads.types else None)] * rows)

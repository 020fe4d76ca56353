"""Ways that may be faster on a GPU than launching a model's operations in FP16. Each is measured beside that, and none
is enabled by its figure."""

import contextlib
import copy
import dataclasses
import itertools
import time
from collections.abc import Sequence

import numpy as np
import torch

from shared_model import devices
from shared_model.batches import LEAST_PACKED_TOKENS, Batch, pack, packed_ends
from shared_model.encoding import collate
from shared_model.engine import Engine
from shared_model.engines.rank_group import Split
from shared_model.engines.tensor_parallel import TensorParallelEngine
from shared_model.types import Device
from tests.benchmarks.devices import narrow_layers, rates
from tests.benchmarks.devices.models import Subject

_CALLS, _RANKS = 20, 2
#: Batches of a compiled model before it counts: torch compiles for other lengths from the second one on.
_WARMED = 3


def narrow(subject: Subject, texts: Sequence[str]) -> dict[str, float]:
    """Rate of packed batches with layers in 8 bits over that of the engine, where the device multiplies such numbers,
    and how far their scores are apart."""
    batches, found = _batches(subject, texts), dict[str, float]()
    launched = _total_seconds(subject.engine, batches)
    for name, dtype in {"int8": narrow_layers.INT8, "fp8": narrow_layers.FP8}.items():
        cuda = subject.engine.device is Device.CUDA
        if cuda and torch.cuda.get_device_capability() < narrow_layers.SINCE[dtype]:
            continue
        other = narrow_layers.narrowed(subject.engine, dtype)
        found[f"{name}_delta"] = _delta(subject, other, batches[0])
        found[f"{name}_over_launched"] = launched / _total_seconds(other, batches)
    return found


def compiled(subject: Subject, texts: Sequence[str]) -> dict[str, float]:
    """Rate of packed batches by torch.compile over that of the engine, and how far their scores are apart. Each batch
    runs once, as in a night: what is compiled anew for other lengths counts."""
    # Compiling for a CPU takes a C++ compiler and a minute; there only what torch traces is tested.
    backend = "inductor" if subject.engine.device is Device.CUDA else "eager"
    other = copy.copy(subject.engine)
    other._model = torch.compile(subject.engine._model, dynamic=True, backend=backend)  # type: ignore[assignment]
    batches = _batches(subject, texts)
    delta = _delta(subject, other, batches[0])
    launched = _total_seconds(subject.engine, batches)
    return {"compiled_over_launched": launched / _total_seconds(other, batches), "compiled_delta": delta}


def recorded(subject: Subject, text: str) -> dict[str, float]:
    """Rate of single calls, after the warm-up that records them where the device can, over those launched."""
    single = collate(subject.encoder.encode_many([text]))
    launched = subject.engine.beside()
    before = _seconds(launched or subject.engine, single)
    subject.engine.warm_up([(single.rows, single.tokens)])
    after = _seconds(subject.engine, single)
    if launched:
        launched.close()
    return {"recorded_over_launched": before / after}


def tensor_parallel(subject: Subject, texts: Sequence[str], ours: float) -> dict[str, float]:
    """rows/s of two ranks over that of one, `ours`; nothing where there are no two GPUs."""
    device = subject.engine.device
    if devices.gpus() < _RANKS:
        return {}
    split = Split(subject.engine.precision, device, _RANKS, _RANKS, range(_RANKS) if device is Device.CUDA else ())
    with contextlib.closing(TensorParallelEngine(subject.files, split)) as engine:
        # Once before it counts, as with one.
        ranks = dataclasses.replace(subject, engine=engine)
        rates.nightly(ranks, texts)
        return {"two_ranks_over_one": rates.nightly(ranks, texts)["rows_per_second"] / ours}


def _seconds(engine: Engine, batch: Batch) -> float:
    """Median of a call."""

    def one() -> float:
        began = time.perf_counter()
        engine.start(batch).result()
        return time.perf_counter() - began

    one()
    return float(np.median([one() for _ in range(_CALLS)]))


def _batches(subject: Subject, texts: Sequence[str]) -> list[Batch]:
    encodings = subject.encoder.encode_many(list(texts))
    ends = packed_ends([it.tokens for it in encodings], LEAST_PACKED_TOKENS)[: _WARMED + _CALLS]
    return [pack(encodings[start:end]) for start, end in itertools.pairwise([0, *ends])]


def _total_seconds(engine: Engine, batches: Sequence[Batch]) -> float:
    """Of all but the first few, or of all where there are no more."""
    for batch in batches[:_WARMED]:
        engine.start(batch).result()
    began = time.perf_counter()
    for batch in batches[_WARMED:] or batches:
        engine.start(batch).result()
    return time.perf_counter() - began


def _delta(subject: Subject, other: Engine, batch: Batch) -> float:
    scores = [subject.heads.scores(engine.start(batch).result()) for engine in (subject.engine, other)]
    return float(np.abs(scores[0] - scores[1]).max())

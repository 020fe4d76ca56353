"""How far models that are split are from models in one piece, and how soon a lost rank is noticed."""

import contextlib
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shared_model.engines.tensor_parallel import TensorParallelEngine
from tests.shared_model import tiny_models
from tests.shared_model.engines import lost_ranks
from tests.shared_model.engines.forked_ranks import RANKS, ForkedRanks
from tests.shared_model.engines.split_models import PACKED, TEXTS, split_model
from tests.shared_model.engines.staged_models import KINDS, staged_model

_BATCHES, _ROWS = 4, 12


def tensor_parallel() -> dict[str, float]:
    """Largest difference of a score, by family and number of ranks."""
    with _folder() as folder:
        models = {family: split_model(folder / family, family) for family in PACKED}
        (folder / "ranks").mkdir()
        files = {family: model.files for family, model in models.items()}
        found: dict[str, float] = {}
        with contextlib.closing(ForkedRanks(folder / "ranks", files)) as forked:
            for family, model in models.items():
                batches = [model.batch(rows) for rows in _batches()]
                for ranks in RANKS:
                    deltas = [model.delta(forked.score(family, ranks, batch), batch) for batch in batches]
                    found[f"{family}, {ranks} ranks"] = max(deltas)
    return found


def pipeline() -> dict[str, float]:
    """The same, by family and kind of model, in two stages."""
    found: dict[str, float] = {}
    with _folder() as folder:
        for family in tiny_models.FAMILIES:
            staged = staged_model(folder / family, family)
            found |= {f"{family}, {kind}": max(staged.deltas(kind, _batches())) for kind in KINDS}
    return found


def lost_rank_seconds() -> dict[str, float]:
    """Until the batch of an engine fails whose rank is killed, or hangs."""
    with _folder() as folder:
        model = split_model(folder / "bert", "bert")
        with contextlib.closing(TensorParallelEngine(model.files, lost_ranks.SPLIT)) as engine:
            return {
                number.name: lost_ranks.loss_seconds(engine, model.batch(range(4)), number)[0]
                for number in (signal.SIGKILL, signal.SIGSTOP)
            }


def _batches() -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(0, len(TEXTS), _ROWS).tolist() for _ in range(_BATCHES)]


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)

"""The part of the engine contract that is the same for all engines of which one call uses the whole device."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from shared_model.batches import Batch, Running
from shared_model.encoding import TokenBatch


class WholeDevice(ABC):
    """See `shared_model.engine.Engine`."""

    width = 1
    streams = 1

    @abstractmethod
    def start(self, batch: Batch) -> Running: ...

    def score(self, batch: TokenBatch, single: bool = False) -> NDArray[np.float32]:
        return self.start(batch).result()

    def rows(self, tokens: int, single: bool = False) -> Sequence[int]:
        # Any size runs; these sizes limit the warm-up.
        return (1,) if single else (1, 2, 4, 8, 16, 32, 64)

    def widened(self, threads: int) -> None:
        """None: one call uses the whole device."""
        return

    def specialise(self, tokens: int, pairs: bool = False) -> None:
        """Does nothing: torch compiles no shapes."""
        return

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        for shape in shapes:
            self.score(TokenBatch(np.ones(shape, np.int64), np.ones(shape, np.int64)))

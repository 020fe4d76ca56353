"""A torch engine of several processes, each with a share of every layer: for a model that does not fit one GPU.

It runs beside the engine that its caller sees, not in it: a lost rank, whose communicator ends its process, must not
end a service or a Spark worker. Needs no torch in this process.
"""

import json
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shared_model.batches import Batch
from shared_model.engines import rank_messages
from shared_model.engines.rank_group import Split
from shared_model.engines.rank_messages import Kind
from shared_model.engines.ranks import Ranks
from shared_model.engines.whole_device import WholeDevice
from shared_model.errors import ReleaseError

#: Of configs: the family's names of the number of heads and of the MLP's width.
_HEADS, _INNER = ("num_attention_heads", "n_heads"), ("intermediate_size", "hidden_dim")
_FAMILIES = ("bert", "distilbert", "roberta", "xlm-roberta", "modernbert")


class TensorParallelEngine(WholeDevice):
    """See `shared_model.engine.Engine`; also raises EngineLost, after which it may be called again."""

    def __init__(self, files: Mapping[str, bytes], split: Split) -> None:
        """Raises: ReleaseError for a model that cannot be split so; EngineLost, OutOfMemory."""
        if why := problem(json.loads(files["config.json"])["model"], split.ranks):
            raise ReleaseError(why)
        self.precision, self.device = split.precision, split.device
        self._ranks = Ranks(split, files)
        facts = self._ranks.facts
        self.batching, self.ahead = facts.batching, facts.ahead
        self.hardware = f"{split.ranks} of {facts.hardware}"

    @property
    def processes(self) -> list[int]:
        """Of its ranks, the first one's first."""
        return self._ranks.processes

    def bulk_tokens(self) -> int:
        return min(map(int, self._ranks.ask(Kind.TOKENS).result()))

    def beside(self) -> None:
        """None: the ranks compute one batch after the other."""

    def start(self, batch: Batch) -> "_Running":
        return _Running(self._ranks.ask(Kind.SCORE, rank_messages.batch_to_bytes(batch)))

    def close(self) -> None:
        self._ranks.close()


@dataclass
class _Running:
    answers: "Future[list[bytes]]"
    seconds: float = field(default=0.0, init=False)

    def result(self) -> NDArray[np.float32]:
        raw, self.seconds = rank_messages.raw_from_bytes(self.answers.result()[0])
        return raw


def problem(config: Mapping[str, object], ranks: int) -> str:
    """Why a model of this Hugging Face config cannot be split over so many ranks, in one line; empty if it can."""
    family = config.get("model_type")
    if family not in _FAMILIES:
        return f"tensor parallelism splits {', '.join(_FAMILIES)}; this model is a {family}"
    heads, inner = (next(int(str(config[it])) for it in names if it in config) for names in (_HEADS, _INNER))
    if heads % ranks or inner % ranks:
        fitting = [str(it) for it in range(1, heads + 1) if heads % it == 0 and inner % it == 0]
        return (
            f"{ranks} ranks cannot share the model's {heads} attention heads and MLP of {inner} evenly; "
            f"set one of {', '.join(fitting)}"
        )
    return ""

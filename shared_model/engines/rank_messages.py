"""Messages between an engine and its ranks: a kind of one byte, then the content."""

import json
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from shared_model.batches import Batch, Batching, PackedBatch
from shared_model.encoding import TokenBatch
from shared_model.types import Device, Precision

#: How often a rank says that it lives, and how long it may compute apart from the others or say nothing.
BEAT_SECONDS, SILENT_SECONDS = 1.0, 6.0


class Kind(Enum):
    """From a rank: STARTED (its imports are done), OPENED (with Facts), BEAT, DONE (with the answer to a request: only
    the first rank's has content), NO_MEMORY and FAILED (with a line; the rank then ends). To it: OPEN, SCORE (with a
    batch), TOKENS."""

    STARTED = b"s"
    OPENED = b"o"
    BEAT = b"b"
    DONE = b"d"
    NO_MEMORY = b"m"
    FAILED = b"f"
    OPEN = b"O"
    SCORE = b"S"
    TOKENS = b"T"


def message(kind: Kind, content: bytes = b"") -> bytes:
    return kind.value + content


def read(received: bytes) -> tuple[Kind, bytes]:
    return Kind(received[:1]), received[1:]


@dataclass(frozen=True)
class Task:
    """All that a rank is started with. `files`: descriptors of a variant's files by name; `store`: of the file by
    which ranks find each other; `parent`: the process that started it."""

    rank: int
    ranks: int
    precision: Precision
    device: Device
    gpu: int
    files: dict[str, int]
    store: int
    connection: int
    parent: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Task":
        found: dict[str, Any] = json.loads(text)
        return cls(**{**found, "precision": Precision(found["precision"]), "device": Device(found["device"])})


@dataclass(frozen=True)
class Facts:
    """Properties, as in the contract, of the engine that a rank has opened."""

    batching: Batching
    hardware: str
    ahead: int

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Facts":
        found: dict[str, Any] = json.loads(content)
        return cls(Batching(found["batching"]), found["hardware"], found["ahead"])


def batch_to_bytes(batch: Batch) -> bytes:
    arrays = {"ids": batch.ids} if batch.types is None else {"ids": batch.ids, "types": batch.types}
    own = {"lengths": batch.lengths} if isinstance(batch, PackedBatch) else {"mask": batch.mask}
    return _saved(arrays | own)


def batch_from_bytes(content: bytes) -> Batch:
    arrays = safetensors.numpy.load(content)
    types = arrays.get("types")
    if "lengths" in arrays:
        return PackedBatch(arrays["ids"], arrays["lengths"], types)
    return TokenBatch(arrays["ids"], arrays["mask"], types)


def raw_to_bytes(raw: NDArray[np.float32], seconds: float) -> bytes:
    return _saved({"raw": raw, "seconds": np.array([seconds])})


def raw_from_bytes(content: bytes) -> tuple[NDArray[np.float32], float]:
    arrays = safetensors.numpy.load(content)
    return arrays["raw"], float(arrays["seconds"][0])


def _saved(arrays: dict[str, NDArray[Any]]) -> bytes:
    # It writes the memory as it lies.
    return bytes(safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))

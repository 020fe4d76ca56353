"""Enums and value types that both paths use."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Priority(StrEnum):
    UNSPECIFIED = "unspecified"
    REAL_TIME = "real_time"
    NORMAL = "normal"
    BATCH = "batch"


class ServingPath(StrEnum):
    """The router's choice for one request."""

    LATENCY = "latency"
    DYNAMIC = "dynamic"
    THROUGHPUT = "throughput"
    PRECOMPUTED = "precomputed"
    DEFERRED = "deferred"


class DeferredState(StrEnum):
    """State of submitted work; `shared_model.deferred` has the diagram."""

    ACCEPTED = "accepted"
    CLAIMED = "claimed"
    SCORED = "scored"
    PUBLISHED = "published"
    FAILED = "failed"
    EXPIRED = "expired"

    @property
    def ended(self) -> bool:
        return self in {DeferredState.PUBLISHED, DeferredState.FAILED, DeferredState.EXPIRED}


class Precision(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True)
class Spread:
    """How one model is spread over devices. `ranks`: processes that compute each batch together; `stages`: parts of the
    model, through which one call flows after the other; `gpus`: the numbers of theirs, empty: from 0 on."""

    ranks: int = 1
    stages: int = 1
    gpus: tuple[int, ...] = ()


#: On one device.
WHOLE = Spread()


@dataclass(frozen=True, slots=True)
class Label:
    """`score`: the label's probability, or a regression's value."""

    name: str
    score: float


@dataclass(frozen=True, slots=True)
class HeadScore:
    """One text's answer by one head: labels best first, or the values of a regression, or a `vector` from a head that
    makes embeddings. `abstained`: the answer's confidence is below the head's threshold."""

    labels: tuple[Label, ...]
    vector: tuple[float, ...] = ()
    abstained: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """One text's answer: `labels`, `vector` and `abstained` of the first head, as in HeadScore; `heads`: those of the
    others, by name. `tokens`, `truncated`: the part of the text that the model read."""

    labels: tuple[Label, ...]
    tokens: int
    truncated: bool
    vector: tuple[float, ...] = ()
    heads: Mapping[str, HeadScore] = field(default_factory=dict)
    abstained: bool = False


#: Labels a published score and a nightly row keep; the most a caller may ask for.
TOP_K = 5

#: The longest text either path takes, in bytes of UTF-8.
MAX_TEXT_BYTES = 64 * 1024
#: Texts of one request to the service, at most.
MAX_TEXTS = 64

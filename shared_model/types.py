"""The vocabulary both paths use: enums and frozen values."""

from dataclasses import dataclass
from enum import StrEnum


class Priority(StrEnum):
    UNSPECIFIED = "unspecified"
    REAL_TIME = "real_time"
    NORMAL = "normal"
    BATCH = "batch"


class ServingPath(StrEnum):
    """What the router chose for one request."""

    LATENCY = "latency"
    DYNAMIC = "dynamic"
    THROUGHPUT = "throughput"
    PRECOMPUTED = "precomputed"
    DEFERRED = "deferred"


class DeferredState(StrEnum):
    """Where submitted work is in its life; `shared_model.deferred` draws it."""

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


@dataclass(frozen=True, slots=True)
class Label:
    """`score`: the label's probability, or a regression's value."""

    name: str
    score: float


@dataclass(frozen=True, slots=True)
class Score:
    """One text's answer and what the model read of the text: labels best first, or the values of a regression; or,
    from a release that makes embeddings, a `vector`."""

    labels: tuple[Label, ...]
    tokens: int
    truncated: bool
    vector: tuple[float, ...] = ()


#: Labels a published score and a nightly row keep; the most a caller may ask for.
TOP_K = 5

#: The longest text either path takes, in bytes of UTF-8.
MAX_TEXT_BYTES = 64 * 1024
#: Texts of one request to the service, at most.
MAX_TEXTS = 64

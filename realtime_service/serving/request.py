"""A request as the dispatcher takes it, checked field by field, and the context that travels with it."""

import re
from dataclasses import dataclass

from protos.scoring.v1 import scoring_pb2
from realtime_service.cluster.forwarded_context import ForwardedContext
from realtime_service.identity import Identity, of_model
from realtime_service.models.registry import Model, Serving
from realtime_service.routing.snapshot import Snapshot
from shared_model.errors import BadInput
from shared_model.types import MAX_TEXT_BYTES, MAX_TEXTS, TOP_K, Priority, ServingPath

DEFAULT_TOP_K = 3
MAX_REQUEST_ID = 256
#: Characters that forge lines, or the order in which a line reads, where a name is shown: control characters, line and
#: paragraph separators, and controls of bidirectional text.
_FORGING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

#: Metadata of a forwarded call with the identity of its caller; counts only beside the proof of a replica.
IDENTITY = "x-tandem-caller"

PRIORITIES = {
    scoring_pb2.PRIORITY_UNSPECIFIED: Priority.UNSPECIFIED,
    scoring_pb2.REAL_TIME: Priority.REAL_TIME,
    scoring_pb2.NORMAL: Priority.NORMAL,
    scoring_pb2.BATCH: Priority.BATCH,
}


@dataclass(frozen=True, slots=True)
class ScoringRequest:
    """`text_pairs`: second texts, for a release that reads pairs. `timeout` is in seconds, None when none was given.

    `allow_deferred`: rather answered later than refused. `every_score`: all numbers of the release's output are wanted,
    not only the best `top_k`, which is all that published scores hold. `model`: that answers, "" for the default one.
    """

    texts: tuple[str, ...]
    text_pairs: tuple[str, ...]
    priority: Priority
    timeout: float | None
    top_k: int
    release: str
    request_id: str
    allow_deferred: bool = False
    every_score: bool = False
    model: str = ""


@dataclass(frozen=True, slots=True)
class CallContext:
    """The call around a request. `caller`: who calls; `left`: seconds until the transport's own deadline, None
    without one; `hint`: the lane that the caller names.

    `method` and `raw` are the call itself, unparsed, and `passed` the metadata that goes along when another replica
    answers it; `forwarded` is the decision of the replica that forwarded it, None for a call of a client.
    `repeated`: gRPC makes the call for the second time. `arrived`: monotonic seconds, None where a request does not
    come with its call.
    """

    caller: Identity
    left: float | None
    method: str
    raw: bytes
    hint: ServingPath | None = None
    passed: tuple[tuple[str, str | bytes], ...] = ()
    forwarded: ForwardedContext | None = None
    repeated: bool = False
    arrived: float | None = None

    @property
    def payer(self) -> str | None:
        """The caller whose budgets the call uses; None for a forwarded call, which has used them where it came in."""
        return None if self.forwarded else self.caller.quota_key


@dataclass(slots=True)
class RequestContext:
    """One request on its way through the dispatcher. Times are monotonic seconds.

    `snapshot` is read once, when the request arrives: every decision about it here is made on this one. `deadline`:
    None when the caller gave none. `name`: of the model, once it is known to be served; `model`: set when its release
    is loaded here; `path`: the lane decided last. `flow`: by which fair queueing counts: the caller, for each model.
    """

    request: ScoringRequest
    call: CallContext
    snapshot: Snapshot
    arrived: float
    deadline: float | None
    model: Model | None = None
    path: ServingPath | None = None
    name: str = ""
    flow: str = ""

    @property
    def real_time(self) -> bool:
        return self.request.priority is Priority.REAL_TIME

    def name_model(self, serving: Serving) -> None:
        """Note the model that the request is for, which is known."""
        other = serving.other(self.request.model)
        self.name = other or serving.default_name
        self.flow = of_model(self.call.caller.quota_key, other)

    def elapsed(self, now: float) -> float:
        """Seconds since the request arrived."""
        return now - self.arrived

    def left(self, now: float) -> float | None:
        """Seconds until the answer is due; None without a deadline."""
        return None if self.deadline is None else self.deadline - now


def check_request(message: scoring_pb2.ScoreRequest) -> ScoringRequest:
    """Raises: BadInput."""
    # Before the texts are read: a message may hold a million.
    count, paired = len(message.texts), len(message.text_pairs)
    if not 1 <= count <= MAX_TEXTS:
        raise BadInput("texts", f"holds {count} texts, must hold 1 to {MAX_TEXTS}")
    if paired and paired != count:
        raise BadInput("text_pairs", f"holds {paired} texts, must hold none or {count}")
    # Each is read once: a look into a message makes a new object.
    texts, pairs, request_id = tuple(message.texts), tuple(message.text_pairs), message.request_id
    priority, timeout_ms, top_k = PRIORITIES.get(message.priority), message.timeout_ms, message.top_k
    for field, held in (("texts", texts), ("text_pairs", pairs)):
        for index, text in enumerate(held):
            check_text(f"{field}[{index}]", text)
    if priority is None:
        raise BadInput("priority", f"{message.priority} is unknown; use REAL_TIME, NORMAL or BATCH")
    if timeout_ms < 0:
        raise BadInput("timeout_ms", f"is {timeout_ms}, must not be negative")
    check_top_k(top_k)
    check_length("request_id", request_id)
    return ScoringRequest(
        texts=texts,
        text_pairs=pairs,
        priority=priority,
        timeout=timeout_ms / 1000 if timeout_ms else None,
        top_k=top_k or DEFAULT_TOP_K,
        release=message.release,
        request_id=request_id,
        allow_deferred=message.allow_deferred,
        model=message.model,
    )


def deferred_request(request: ScoringRequest) -> scoring_pb2.ScoreRequest:
    """The stored form of a request that will be answered later: no priority, no deadline."""
    return scoring_pb2.ScoreRequest(
        texts=request.texts,
        text_pairs=request.text_pairs,
        top_k=request.top_k,
        release=request.release,
        request_id=request.request_id,
        model=request.model,
    )


def check_top_k(top_k: int) -> None:
    """Raises: BadInput."""
    if top_k > TOP_K:
        raise BadInput("top_k", f"is {top_k}, must be at most {TOP_K}")


def check_length(field: str, request_id: str) -> None:
    """Raises: BadInput."""
    if len(request_id) > MAX_REQUEST_ID:
        raise BadInput(field, f"is longer than {MAX_REQUEST_ID} characters")


def check_name(field: str, name: str) -> None:
    """Check an id that logs, commands and answers show. Raises: BadInput."""
    # Most names are printable, which is quicker to see.
    if not name.isprintable() and (found := _FORGING.search(name)):
        raise BadInput(field, f"holds the character U+{ord(found[0]):04X}, which names must not hold")


def check_text(field: str, text: str) -> None:
    """Raises: BadInput naming `field`."""
    if not text.strip():
        raise BadInput(field, "is empty")
    # Most texts are far below the limit: encode only those that could be over it.
    if len(text) * 4 > MAX_TEXT_BYTES and len(text.encode()) > MAX_TEXT_BYTES:
        raise BadInput(field, f"is longer than {MAX_TEXT_BYTES} bytes of UTF-8")

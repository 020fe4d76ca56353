"""Bytes from the wire → a checked request. Every complaint names the field.

The handlers take raw bytes: left to the transport, a text that is not UTF-8 would be answered before any handler ran,
with a status that blames the server.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from protos.scoring.v1 import scoring_pb2
from realtime_service.errors import MessageTooLarge
from shared_model.errors import BadInput
from shared_model.types import MAX_TEXT_BYTES, MAX_TEXTS, TOP_K, Priority

DEFAULT_TOP_K = 3
#: The largest request of single texts, and room for its other fields. Pairs of the longest texts come in two.
MAX_MESSAGE_BYTES = MAX_TEXTS * MAX_TEXT_BYTES + 64 * 1024
#: What the transport lets through. More than we take, because we refuse in a few milliseconds where the transport,
#: busy with throwing the rest of the message away, takes a hundred.
TRANSPORT_MESSAGE_BYTES = 4 * MAX_MESSAGE_BYTES
MAX_REQUEST_ID = 256
MAX_WATCHED = 1000

_PRIORITIES = {
    scoring_pb2.PRIORITY_UNSPECIFIED: Priority.UNSPECIFIED,
    scoring_pb2.REAL_TIME: Priority.REAL_TIME,
    scoring_pb2.NORMAL: Priority.NORMAL,
    scoring_pb2.BATCH: Priority.BATCH,
}

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class ScoringRequest:
    """`text_pairs`: second texts, for a release that reads pairs. `timeout` is in seconds, None when none was given.

    `allow_deferred`: rather answered later than refused. `every_score`: all numbers of the release's output are wanted,
    not only the best `top_k`, which is all that published scores hold.
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


def parse(kind: type[Message], raw: bytes) -> Message:
    """Decode one message.

    Raises: MessageTooLarge; BadInput naming the field that is not UTF-8, or "request" for other damage.
    """
    if len(raw) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(
            f"the message has {len(raw)} bytes, at most {MAX_MESSAGE_BYTES} are taken; send fewer texts"
        )
    parser: Callable[[bytes], Message] = kind.FromString  # type: ignore[attr-defined]
    try:
        return parser(raw)
    except DecodeError as error:
        descriptor: Descriptor = kind.DESCRIPTOR  # type: ignore[attr-defined]
        raise BadInput(*(_find_bad_text(descriptor, raw) or ("request", "is not a message of this type"))) from error


def score_request(raw: bytes) -> ScoringRequest:
    return check(parse(scoring_pb2.ScoreRequest, raw))


def check(message: scoring_pb2.ScoreRequest) -> ScoringRequest:
    """Raises: BadInput."""
    # Each is read once: a look into a message makes a new object.
    texts, pairs, request_id = tuple(message.texts), tuple(message.text_pairs), message.request_id
    priority, timeout_ms, top_k = _PRIORITIES.get(message.priority), message.timeout_ms, message.top_k
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise BadInput("texts", f"holds {len(texts)} texts, must hold 1 to {MAX_TEXTS}")
    if pairs and len(pairs) != len(texts):
        raise BadInput("text_pairs", f"holds {len(pairs)} texts, must hold none or {len(texts)}")
    for field, held in (("texts", texts), ("text_pairs", pairs)):
        for index, text in enumerate(held):
            check_text(f"{field}[{index}]", text)
    if priority is None:
        raise BadInput("priority", f"{message.priority} is unknown; use REAL_TIME, NORMAL or BATCH")
    if timeout_ms < 0:
        raise BadInput("timeout_ms", f"is {timeout_ms}, must not be negative")
    if top_k > TOP_K:
        raise BadInput("top_k", f"is {top_k}, must be at most {TOP_K}")
    if len(request_id) > MAX_REQUEST_ID:
        raise BadInput("request_id", f"is longer than {MAX_REQUEST_ID} characters")
    return ScoringRequest(
        texts=texts,
        text_pairs=pairs,
        priority=priority,
        timeout=timeout_ms / 1000 if timeout_ms else None,
        top_k=top_k or DEFAULT_TOP_K,
        release=message.release,
        request_id=request_id,
        allow_deferred=message.allow_deferred,
    )


def submit_request(raw: bytes) -> tuple[ScoringRequest, int]:
    """The request inside a SubmitRequest, and the milliseconds within which it must have a result; 0: at any time.

    Raises: BadInput.
    """
    message = parse(scoring_pb2.SubmitRequest, raw)
    checked = check(message.request)
    if not checked.request_id:
        raise BadInput("request.request_id", "is empty; deferred work needs an id to be asked for by")
    if checked.timeout is not None:
        raise BadInput("request.timeout_ms", "does not apply to deferred work")
    if checked.priority is not Priority.UNSPECIFIED:
        raise BadInput("request.priority", "does not apply to deferred work")
    if message.deliver_within_ms < 0:
        raise BadInput("deliver_within_ms", f"is {message.deliver_within_ms}, must not be negative")
    return checked, message.deliver_within_ms


def deferred_request(request: ScoringRequest) -> scoring_pb2.ScoreRequest:
    """What is stored of a request that will be answered later: no priority, no deadline."""
    return scoring_pb2.ScoreRequest(
        texts=request.texts,
        text_pairs=request.text_pairs,
        top_k=request.top_k,
        release=request.release,
        request_id=request.request_id,
    )


def watch_request(raw: bytes) -> list[str]:
    """The ids of a WatchResultsRequest, each once. Raises: BadInput."""
    ids = parse(scoring_pb2.WatchResultsRequest, raw).request_ids
    if not 1 <= len(ids) <= MAX_WATCHED:
        raise BadInput("request_ids", f"holds {len(ids)} ids, must hold 1 to {MAX_WATCHED}")
    for index, request_id in enumerate(ids):
        if not request_id:
            raise BadInput(f"request_ids[{index}]", "is empty")
    return list(dict.fromkeys(ids))


def check_text(field: str, text: str) -> None:
    """Raises: BadInput naming `field`."""
    if not text.strip():
        raise BadInput(field, "is empty")
    # Most texts are far below the limit: encode only those that could be over it.
    if len(text) * 4 > MAX_TEXT_BYTES and len(text.encode()) > MAX_TEXT_BYTES:
        raise BadInput(field, f"is longer than {MAX_TEXT_BYTES} bytes of UTF-8")


def _find_bad_text(descriptor: Descriptor, raw: bytes) -> tuple[str, str] | None:
    """The first string field of a message that is not UTF-8: (field, problem)."""
    # A message without fields keeps everything as unknown fields, undecoded: the library's own wire reader.
    try:
        fields: Any = UnknownFieldSet(Empty.FromString(raw))  # the type stub lacks iteration
    except DecodeError:
        return None
    seen: dict[int, int] = {}
    for field in fields:
        known = descriptor.fields_by_number.get(field.field_number)
        if known is None or not isinstance(field.data, bytes):
            continue
        index = seen.get(field.field_number, 0)
        seen[field.field_number] = index + 1
        found = _bad_in(known, field.data, index)
        if found:
            return found
    return None


def _bad_in(known: Any, data: bytes, index: int) -> tuple[str, str] | None:
    name = f"{known.name}[{index}]" if known.is_repeated else known.name
    if known.message_type:
        inner = _find_bad_text(known.message_type, data)
        return (f"{name}.{inner[0]}", inner[1]) if inner else None
    if known.type != known.TYPE_STRING:
        return None
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return name, f"is not valid UTF-8 at byte {error.start}"
    return None

"""Parses and checks requests. Every error names the field.

Handlers take raw bytes, because gRPC's own parser would answer a text that is not UTF-8 before any handler runs, with a
status for a failure of the server.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from protos.scoring.v1 import scoring_pb2
from realtime_service.errors import MessageTooLarge
from realtime_service.serving.request import ScoringRequest, check_request
from shared_model.errors import BadInput
from shared_model.types import MAX_TEXT_BYTES, MAX_TEXTS, Priority

#: The largest request of single texts, and 64 KiB for its other fields. Pairs of the longest texts need two requests.
MAX_MESSAGE_BYTES = MAX_TEXTS * MAX_TEXT_BYTES + 64 * 1024
#: The limit of the transport. It is above ours, because we refuse a message in a few milliseconds, and the transport,
#: which reads it to its end, in a hundred.
TRANSPORT_MESSAGE_BYTES = 4 * MAX_MESSAGE_BYTES
MAX_WATCHED = 1000

Message = TypeVar("Message")


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


def parse_leniently(kind: type[Message], raw: bytes) -> Message:
    """Decode a message that `parse` may have refused; an unreadable one is empty, and has no known id."""
    parser: Callable[[bytes], Message] = kind.FromString  # type: ignore[attr-defined]
    try:
        return parser(raw)
    except DecodeError:
        return kind()


def score_request(raw: bytes) -> ScoringRequest:
    return check_request(parse(scoring_pb2.ScoreRequest, raw))


def submit_request(raw: bytes) -> tuple[ScoringRequest, int]:
    """The request inside a SubmitRequest, and the milliseconds after which it expires without a result; 0: never.

    Raises: BadInput.
    """
    message = parse(scoring_pb2.SubmitRequest, raw)
    checked = check_request(message.request)
    if not checked.request_id:
        raise BadInput("request.request_id", "is empty; deferred work needs an id to be asked for by")
    if checked.timeout is not None:
        raise BadInput("request.timeout_ms", "does not apply to deferred work")
    if checked.priority is not Priority.UNSPECIFIED:
        raise BadInput("request.priority", "does not apply to deferred work")
    if message.deliver_within_ms < 0:
        raise BadInput("deliver_within_ms", f"is {message.deliver_within_ms}, must not be negative")
    return checked, message.deliver_within_ms


def watch_request(raw: bytes) -> dict[str, str]:
    """The ids of a WatchResultsRequest, and their tickets. Raises: BadInput."""
    message = parse(scoring_pb2.WatchResultsRequest, raw)
    ids, tickets = message.request_ids, message.tickets
    if not 1 <= len(ids) <= MAX_WATCHED:
        raise BadInput("request_ids", f"holds {len(ids)} ids, must hold 1 to {MAX_WATCHED}")
    for index, request_id in enumerate(ids):
        if not request_id:
            raise BadInput(f"request_ids[{index}]", "is empty")
    if tickets and len(tickets) != len(ids):
        raise BadInput("tickets", f"holds {len(tickets)} tickets, must hold none or {len(ids)}")
    return dict(zip(ids, tickets or [""] * len(ids), strict=True))


def _find_bad_text(descriptor: Descriptor, raw: bytes) -> tuple[str, str] | None:
    """The first string field of a message that is not UTF-8: (field, problem)."""
    # A message type without fields keeps all fields as unknown ones, undecoded.
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

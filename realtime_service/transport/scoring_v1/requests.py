"""Checks the requests of scoring.v1. Every error names the field."""

from google.protobuf.message import Message

from protos.scoring.v1 import scoring_pb2
from realtime_service.routing.quotas import bytes_charged
from realtime_service.serving.message_lookup import MAX_IDS
from realtime_service.serving.request import ScoringRequest, check_length, check_name, check_request, check_top_k
from realtime_service.transport.messages import parse
from realtime_service.transport.outlines import Outline, first_fields, text
from shared_model.errors import BadInput
from shared_model.types import Priority

MAX_WATCHED = 1000


def outline(kind: type[Message], raw: bytes) -> Outline:
    """Of a ScoreRequest, or of one inside a message of `kind`."""
    sizes: dict[str, list[int]] = {"texts": [], "text_pairs": []}
    model = ""
    for _, known, content in first_fields(kind, raw):
        if known is None or content is None or known.containing_type is not scoring_pb2.ScoreRequest.DESCRIPTOR:
            continue
        if known.name in sizes:
            sizes[known.name].append(len(content))
        elif known.name == "model":
            model = text(content)
    return Outline(model, bytes_charged(*sizes.values()))


def score_request(raw: bytes) -> ScoringRequest:
    """Raises: BadInput, MessageTooLarge."""
    checked = check_request(parse(scoring_pb2.ScoreRequest, raw))
    _check_names(checked)
    return checked


def submit_request(raw: bytes) -> tuple[ScoringRequest, int]:
    """The request inside a SubmitRequest, and the milliseconds after which it expires without a result; 0: never.

    Raises: BadInput.
    """
    message = parse(scoring_pb2.SubmitRequest, raw)
    checked = check_request(message.request)
    if not checked.request_id:
        raise BadInput("request.request_id", "is empty; deferred work needs an id to be asked for by")
    _check_names(checked, "request.")
    if checked.timeout is not None:
        raise BadInput("request.timeout_ms", "does not apply to deferred work")
    if checked.priority is not Priority.UNSPECIFIED:
        raise BadInput("request.priority", "does not apply to deferred work")
    if message.deliver_within_ms < 0:
        raise BadInput("deliver_within_ms", f"is {message.deliver_within_ms}, must not be negative")
    return checked, message.deliver_within_ms


def result_request(raw: bytes) -> tuple[str, str]:
    """The id of a GetResultRequest, and its ticket. Raises: BadInput, MessageTooLarge."""
    message = parse(scoring_pb2.GetResultRequest, raw)
    _check_asked("request_id", message.request_id)
    return message.request_id, message.ticket


def watch_request(raw: bytes) -> dict[str, str]:
    """The ids of a WatchResultsRequest, and their tickets. Raises: BadInput, MessageTooLarge."""
    message = parse(scoring_pb2.WatchResultsRequest, raw)
    ids, tickets = message.request_ids, message.tickets
    if not 1 <= len(ids) <= MAX_WATCHED:
        raise BadInput("request_ids", f"holds {len(ids)} ids, must hold 1 to {MAX_WATCHED}")
    if tickets and len(tickets) != len(ids):
        raise BadInput("tickets", f"holds {len(tickets)} tickets, must hold none or {len(ids)}")
    for index, request_id in enumerate(ids):
        _check_asked(f"request_ids[{index}]", request_id)
    return dict(zip(ids, tickets or [""] * len(ids), strict=True))


def lookup_request(raw: bytes) -> scoring_pb2.LookupRequest:
    """Raises: BadInput, MessageTooLarge."""
    message = parse(scoring_pb2.LookupRequest, raw)
    if not 1 <= len(message.ids) <= MAX_IDS:
        raise BadInput("ids", f"holds {len(message.ids)} ids, must hold 1 to {MAX_IDS}")
    for index, message_id in enumerate(message.ids):
        if not message_id:
            raise BadInput(f"ids[{index}]", "is empty")
    check_name("model", message.model)
    check_top_k(message.top_k)
    return message


def _check_asked(field: str, request_id: str) -> None:
    """Any id that may have been stored once, whatever its characters."""
    if not request_id:
        raise BadInput(field, "is empty")
    check_length(field, request_id)


def _check_names(request: ScoringRequest, prefix: str = "") -> None:
    """Checked on the wire alone: requests that were stored before names were checked stay readable."""
    check_name(f"{prefix}request_id", request.request_id)
    check_name(f"{prefix}release", request.release)
    check_name(f"{prefix}model", request.model)

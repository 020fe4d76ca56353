"""Converts errors, states of deferred requests and scores of a night to messages of scoring.v1."""

from collections.abc import Sequence

from protos.scoring.v1 import scoring_pb2
from realtime_service.errors import Status
from realtime_service.models.wire_format import field, tag
from realtime_service.serving.message_lookup import Found
from realtime_service.serving.request import DEFAULT_TOP_K
from shared_model.deferred import Accepted, Item
from shared_model.releases.manifest import name_of

_RESULT = tag(scoring_pb2.LookupResponse.RESULTS_FIELD_NUMBER)
_ID, _SCORES = (tag(getattr(scoring_pb2.LookupResult, f"{name}_FIELD_NUMBER")) for name in ("ID", "RESULT"))


def stream_error(status: Status) -> scoring_pb2.StreamError:
    return scoring_pb2.StreamError(
        code=status.code.value[0], message=status.message, retry_after_ms=status.retry_after_ms
    )


def submit_response(request_id: str, accepted: Accepted) -> scoring_pb2.SubmitResponse:
    return scoring_pb2.SubmitResponse(
        request_id=request_id, state=accepted.state.name, duplicate=accepted.duplicate, ticket=accepted.ticket
    )


def lookup_response(ids: Sequence[str], found: Found, top_k: int) -> bytes:
    """A LookupResponse, encoded."""
    release = found.model.release
    ds, model = found.epoch.rpartition(".")[0], name_of(release)
    response = scoring_pb2.LookupResponse(release=release, ds=ds, precision=found.precision, model=model)
    encoded = [response.SerializeToString()]
    encoder, k = found.model.result_encoder, top_k or DEFAULT_TOP_K
    for message_id, score in zip(ids, found.scores, strict=True):
        result = field(_ID, message_id.encode())
        if score is not None:
            result += field(_SCORES, encoder.published(score, k).encoded())
        encoded.append(field(_RESULT, result))
    return b"".join(encoded)


def result_response(request_id: str, item: Item, sees_precomputed: bool) -> scoring_pb2.GetResultResponse:
    """`sees_precomputed`: whether the caller may learn that texts had been scored before."""
    if item.response and not sees_precomputed:
        item.response.reason = f"deferred: answered by {item.computed_by}"
        item.response.batch_size = max(1, item.response.batch_size)
    return scoring_pb2.GetResultResponse(
        request_id=request_id,
        state=item.state.name,
        response=item.response,
        computed_by=item.computed_by,
        failure=item.failure,
    )

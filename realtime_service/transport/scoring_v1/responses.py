"""Converts errors and states of deferred requests to messages of scoring.v1."""

from protos.scoring.v1 import scoring_pb2
from realtime_service.errors import Status
from shared_model.deferred import Accepted, Item


def stream_error(status: Status) -> scoring_pb2.StreamError:
    return scoring_pb2.StreamError(
        code=status.code.value[0], message=status.message, retry_after_ms=status.retry_after_ms
    )


def submit_response(request_id: str, accepted: Accepted) -> scoring_pb2.SubmitResponse:
    return scoring_pb2.SubmitResponse(
        request_id=request_id, state=accepted.state.name, duplicate=accepted.duplicate, ticket=accepted.ticket
    )


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

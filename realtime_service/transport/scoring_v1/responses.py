"""Converts errors and states of deferred requests to messages of scoring.v1."""

from protos.scoring.v1 import scoring_pb2
from realtime_service.errors import Status
from shared_model.deferred import Item


def stream_error(status: Status) -> scoring_pb2.StreamError:
    return scoring_pb2.StreamError(
        code=status.code.value[0], message=status.message, retry_after_ms=status.retry_after_ms
    )


def result_response(request_id: str, item: Item) -> scoring_pb2.GetResultResponse:
    return scoring_pb2.GetResultResponse(
        request_id=request_id,
        state=item.state.name,
        response=item.response,
        computed_by=item.computed_by,
        failure=item.failure,
    )

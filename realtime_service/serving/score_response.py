"""Encodes an answer as scoring.v1's message, which a caller gets or the deferred queue stores."""

from protos.scoring.v1 import scoring_pb2
from realtime_service.models.wire_format import field, tag
from realtime_service.serving.answer import Answer

_RESULT = tag(scoring_pb2.ScoreResponse.RESULTS_FIELD_NUMBER)


def score_response(answer: Answer, request_id: str) -> bytes:
    """A ScoreResponse, encoded."""
    response = scoring_pb2.ScoreResponse(
        path=answer.path.name,
        release=answer.release,
        precision=answer.precision,
        batch_size=answer.batch_rows,
        queue_us=round(answer.queued * 1e6),
        compute_us=round(answer.computed * 1e6),
        request_id=request_id,
        reason=answer.reason,
        model=answer.model,
        slack_us=None if answer.slack is None else round(answer.slack * 1e6),
    )
    if answer.ticket:
        response.ticket.request_id, response.ticket.ticket = answer.ticket.request_id, answer.ticket.secret
    return b"".join([response.SerializeToString(), *(field(_RESULT, score.encoded()) for score in answer.scores)])

"""Converts an answer to scoring.v1's message, which a caller gets or the deferred queue stores."""

from protos.scoring.v1 import scoring_pb2
from realtime_service.serving.answer import Answer


def score_response(answer: Answer, request_id: str) -> scoring_pb2.ScoreResponse:
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
    # Filled in place, because protobuf copies a separate message into the one that contains it.
    for score in answer.scores:
        score.fill(response.results.add())
    return response

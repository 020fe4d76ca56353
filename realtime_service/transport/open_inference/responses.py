"""Converts answers and statistics to messages of the protocol. Outputs are raw, because clients read no typed ones."""

from collections.abc import Iterable

from protos.inference import open_inference_pb2 as pb
from realtime_service.errors import Status
from realtime_service.models.registry import Model
from realtime_service.models.statistics import Total
from realtime_service.serving.answer import Answer
from realtime_service.transport.open_inference import tensors
from realtime_service.transport.open_inference.models import Tensor
from realtime_service.transport.open_inference.requests import LABEL, SCORES, InferRequest
from shared_model.releases.manifest import name_of


def infer_response(request: InferRequest, answer: Answer, wanted: Iterable[Tensor]) -> pb.ModelInferResponse:
    """`wanted`: the outputs in their requested order."""
    response = pb.ModelInferResponse(model_name=request.model, model_version=answer.release, id=request.id)
    # Filled in place, because protobuf copies separate messages.
    parameters = response.parameters
    parameters["path"].string_param = answer.path
    parameters["reason"].string_param = answer.reason
    parameters["release"].string_param = answer.release
    parameters["precision"].string_param = answer.precision
    parameters["batch_size"].int64_param = answer.batch_rows
    parameters["queue_us"].int64_param = round(answer.queued * 1e6)
    parameters["compute_us"].int64_param = round(answer.computed * 1e6)
    if answer.slack is not None:
        parameters["slack_us"].int64_param = round(answer.slack * 1e6)
    for tensor in wanted:
        if tensor.name == LABEL:
            contents = tensors.pack(score.best_label for score in answer.scores)
        elif tensor.datatype == "BOOL":
            # One byte each.
            contents = bytes(score.heads[tensor.head].abstained for score in answer.scores)
        elif answer.every is None:
            raise ValueError(f"{SCORES} were requested, but the answer holds only the best few")
        else:
            contents = tensors.pack_numbers(answer.every[:, tensor.first_column : tensor.first_column + tensor.dims[0]])
        shape = (len(answer.scores), *tensor.dims)
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape)
        response.raw_output_contents.append(contents)
    return response


def stream_failure(request_id: str, status: Status) -> pb.ModelStreamInferResponse:
    return pb.ModelStreamInferResponse(
        error_message=f"{status.code.name}: {status.message}", infer_response=pb.ModelInferResponse(id=request_id)
    )


def statistics(model: Model) -> pb.ModelStatistics:
    stats = model.statistics
    return pb.ModelStatistics(
        name=name_of(model.release),
        version=model.release,
        last_inference=round(stats.finished_at * 1000),
        inference_count=stats.texts,
        execution_count=sum(total.count for total in stats.batches.values()),
        inference_stats=pb.InferStatistics(
            success=_duration(stats.answered),
            fail=_duration(stats.failed),
            queue=_duration(stats.queued),
            compute_infer=_duration(stats.computed),
            cache_hit=_duration(stats.published),
        ),
        batch_stats=[
            pb.InferBatchStatistics(batch_size=rows, compute_infer=_duration(total))
            for rows, total in sorted(stats.batches.items())
        ],
    )


def _duration(total: Total) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=total.count, ns=round(total.seconds * 1e9))

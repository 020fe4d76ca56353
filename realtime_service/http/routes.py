"""What HTTP offers: each route is answered by a gRPC method."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from protos.inference import open_inference_pb2 as inference
from protos.scoring.v1 import scoring_pb2 as scoring
from realtime_service.http import json_messages, open_inference
from realtime_service.transport.open_inference.servicer import INFER
from realtime_service.transport.open_inference.servicer import SERVICE as INFERENCE
from realtime_service.transport.scoring_v1.servicer import DESCRIBE, LOOKUP, SCORE, SUBMIT
from realtime_service.transport.scoring_v1.servicer import SERVICE as SCORING
from shared_model.errors import BadInput

_MODEL = "/v2/models/{model}"
_VERSION = f"{_MODEL}/versions/{{version}}"


@dataclass(frozen=True)
class Asked:
    """A request. `parts`: of its path; `query`: each parameter's values; `body`: its JSON, None without one."""

    parts: Mapping[str, str]
    query: Mapping[str, list[str]]
    body: dict[str, Any] | None

    def one(self, name: str) -> str:
        """A parameter, "" without one. Raises: BadInput."""
        values = self.query.get(name, [""])
        if len(values) > 1:
            raise BadInput(name, "is given twice")
        return values[0]


@dataclass(frozen=True)
class Route:
    """`method`: of gRPC. `read`: a request as its message; `answer`: the kind of its answer, and `show` that as JSON.
    `body`: the kind whose JSON is taken, where one is; `parameters`: of the query. `streams`: answers are events."""

    verb: str
    path: str
    method: str
    summary: str
    read: Callable[[Asked], Message]
    answer: type[Message]
    show: Callable[[Any], dict[str, Any]] = json_messages.shown
    body: type[Message] | None = None
    parameters: tuple[str, ...] = ()
    streams: bool = False


def _of_body(kind: type[Message]) -> Callable[[Asked], Message]:
    return lambda asked: json_messages.message(kind, asked.body or {})


def _result(asked: Asked) -> Message:
    return scoring.GetResultRequest(request_id=asked.parts["request_id"], ticket=asked.one("ticket"))


def _watched(asked: Asked) -> Message:
    ids, tickets = asked.query.get("request_id", []), asked.query.get("ticket", [])
    return scoring.WatchResultsRequest(request_ids=ids, tickets=tickets)


def _model_named(kind: type[Message]) -> Callable[[Asked], Message]:
    return lambda asked: kind(name=asked.parts["model"], version=asked.parts.get("version", ""))


def _infer(asked: Asked) -> Message:
    return open_inference.request(asked.parts["model"], asked.parts.get("version", ""), asked.body or {})


def _post(path: str, method: str, summary: str, body: type[Message], answer: type[Message], **more: Any) -> Route:
    return Route("POST", path, method, summary, _of_body(body), answer, body=body, **more)


def _of_model(path: str, method: str, summary: str, kinds: tuple[type[Message], type[Message]]) -> list[Route]:
    """With a version in the path, and without."""
    read = _model_named(kinds[0])
    return [
        Route("GET", f"{begin}{path}", f"/{INFERENCE}/{method}", summary, read, kinds[1])
        for begin in (_MODEL, _VERSION)
    ]


_INFER = [
    Route(
        "POST",
        f"{begin}/infer",
        INFER,
        "Scores texts by the Open Inference Protocol.",
        _infer,
        inference.ModelInferResponse,
        open_inference.response,
        inference.ModelInferRequest,
    )
    for begin in (_MODEL, _VERSION)
]
_LOOKUP = "Last night's scores of messages, by their ids."
_WATCH = "The ends of submitted requests, as server-sent events: `result` for each, then `end`."

ROUTES: tuple[Route, ...] = (
    _post(
        "/v1/score",
        SCORE,
        "Scores 1 to 64 texts and waits for the answer.",
        scoring.ScoreRequest,
        scoring.ScoreResponse,
    ),
    _post(
        "/v1/submit",
        SUBMIT,
        "Accepts a request that can wait, once it is stored; idempotent by its id.",
        scoring.SubmitRequest,
        scoring.SubmitResponse,
    ),
    Route(
        "GET",
        "/v1/results/{request_id:path}",
        f"/{SCORING}/GetResult",
        "The state of a submitted request and, once it is published, its answer.",
        _result,
        scoring.GetResultResponse,
        parameters=("ticket",),
    ),
    Route(
        "GET",
        "/v1/watch",
        f"/{SCORING}/WatchResults",
        _WATCH,
        _watched,
        scoring.GetResultResponse,
        parameters=("request_id", "ticket", "timeout_ms"),
        streams=True,
    ),
    _post(
        "/v1/watch",
        f"/{SCORING}/WatchResults",
        _WATCH,
        scoring.WatchResultsRequest,
        scoring.GetResultResponse,
        streams=True,
    ),
    Route(
        "GET",
        "/v1/lookup",
        LOOKUP,
        _LOOKUP,
        lambda asked: scoring.LookupRequest(model=asked.one("model"), ids=asked.query.get("id", [])),
        scoring.LookupResponse,
        parameters=("id", "model"),
    ),
    _post("/v1/lookup", LOOKUP, _LOOKUP, scoring.LookupRequest, scoring.LookupResponse),
    Route(
        "GET",
        "/v1/describe",
        DESCRIBE,
        "The releases, lanes and replicas of this service.",
        lambda asked: scoring.DescribeRequest(model=asked.one("model")),
        scoring.DescribeResponse,
        parameters=("model",),
    ),
    Route(
        "GET",
        "/v2",
        f"/{INFERENCE}/ServerMetadata",
        "The server and its extensions, by the Open Inference Protocol.",
        lambda asked: inference.ServerMetadataRequest(),
        inference.ServerMetadataResponse,
        open_inference.server_metadata,
    ),
    *_of_model(
        "",
        "ModelMetadata",
        "A model's versions, inputs and outputs.",
        (inference.ModelMetadataRequest, inference.ModelMetadataResponse),
    ),
    *_of_model(
        "/ready",
        "ModelReady",
        "Whether a model is served: 200, else 503.",
        (inference.ModelReadyRequest, inference.ModelReadyResponse),
    ),
    *_INFER,
)

"""inference.GRPCInferenceService: translates between messages and the dispatcher."""

from collections.abc import AsyncIterator, Coroutine
from typing import Any

import grpc

from protos.inference import open_inference_pb2 as pb
from realtime_service.cluster.membership import Membership
from realtime_service.errors import MessageTooLarge, NotFound, PermissionDenied
from realtime_service.serving.dispatcher import Dispatcher
from realtime_service.serving.request import CallContext
from realtime_service.serving.status import ReplicaStatus
from realtime_service.telemetry.metrics import Metrics, Outcome
from realtime_service.transport import outlines, rpc_handlers
from realtime_service.transport.call_context import ContextReader
from realtime_service.transport.health import Readiness
from realtime_service.transport.messages import read, read_message
from realtime_service.transport.open_inference import models as catalogue
from realtime_service.transport.open_inference import responses
from realtime_service.transport.open_inference.models import Tensor
from realtime_service.transport.open_inference.requests import infer_request, outline
from realtime_service.transport.relay import Relay
from realtime_service.transport.rpc_handlers import Arrival, Context
from realtime_service.transport.streaming import OpenStreams
from shared_model.errors import BadInput

SERVICE = "inference.GRPCInferenceService"
INFER = f"/{SERVICE}/ModelInfer"
#: Methods that only a process with models can answer.
_OF_MODELS = ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex")
#: Methods that other replicas forward.
FORWARDED = (INFER, *(f"/{SERVICE}/{name}" for name in _OF_MODELS))


class OpenInferenceServicer:
    """Handlers take raw bytes (see `transport.messages`) and return or write messages."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        context_reader: ContextReader,
        streams: OpenStreams,
        status: ReplicaStatus,
        membership: Membership,
        readiness: Readiness,
        metrics: Metrics,
        relay: Relay | None,
    ) -> None:
        """`relay`: for a process without lanes."""
        self._dispatcher = dispatcher
        self._context_reader = context_reader
        self._streams = streams
        self._status = status
        self._membership = membership
        self._readiness = readiness
        self._metrics = metrics
        self._relay = relay

    def handlers(self) -> "grpc.GenericRpcHandler[bytes, object]":
        methods: dict[str, rpc_handlers.CallerMethod] = {
            "ServerLive": self.server_live,
            "ServerReady": self.server_ready,
            "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.model_metadata,
            "ModelConfig": self.model_config,
            "ModelStatistics": self.model_statistics,
            "RepositoryIndex": self.repository_index,
        }
        if self._relay:
            methods |= {name: self._relay.method(f"/{SERVICE}/{name}") for name in _OF_MODELS}
        make = rpc_handlers.Handlers(self._context_reader)
        described = {name: make.unary(method, scores=False) for name, method in methods.items()}
        scoring = {
            "ModelInfer": make.unary(self.model_infer, overload=self._dispatcher.early_shedding),
            "ModelStreamInfer": make.bidi_stream(self.model_stream_infer),
        }
        return grpc.method_handlers_generic_handler(SERVICE, {**described, **scoring})

    async def server_live(self, raw: bytes, context: Context, arrival: Arrival) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, raw: bytes, context: Context, arrival: Arrival) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._ready)

    async def model_ready(self, raw: bytes, context: Context, arrival: Arrival) -> pb.ModelReadyResponse:
        """Answers "not ready" instead of an error for a model that is not served."""
        asked = await read_message(pb.ModelReadyRequest, raw)
        try:
            catalogue.loaded(self._status.models.serving, asked.name, asked.version)
        except NotFound:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=self._ready)

    async def server_metadata(self, raw: bytes, context: Context, arrival: Arrival) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(
            name=catalogue.SERVER, version=catalogue.VERSION, extensions=catalogue.EXTENSIONS
        )

    async def model_metadata(self, raw: bytes, context: Context, arrival: Arrival) -> pb.ModelMetadataResponse:
        asked = await read_message(pb.ModelMetadataRequest, raw)
        found = catalogue.loaded(self._status.models.serving, asked.name, asked.version)
        return catalogue.metadata(found)

    async def model_infer(self, raw: bytes, context: Context, arrival: Arrival) -> pb.ModelInferResponse | bytes:
        call = self._context_reader.receive(INFER, raw, context, arrival)
        with self._context_reader.serving(call, raw):
            return await self._infer(raw, call)

    async def _infer(self, raw: bytes, call: CallContext) -> pb.ModelInferResponse | bytes:
        outlines.check_quota(self._dispatcher.early_shedding, call, raw, outline)
        serving, served = self._status.models.serving, self._membership.snapshot.releases
        try:
            request = await read(infer_request, raw)
            release = catalogue.elsewhere(serving, served, request.model, request.version)
            # If only another replica has the model, that one checks the outputs.
            wanted: list[Tensor] = []
            if release is None:
                if not call.caller.may_ask(request.model):
                    raise PermissionDenied(f"model_name: the token does not permit {request.model!r}")
                model = catalogue.choose(serving, request.model, request.version, call.caller.key)
                release, wanted = model.release, catalogue.wanted(request, model)
        except (BadInput, MessageTooLarge, NotFound, PermissionDenied):
            self._metrics.ended(None, Outcome.INVALID)
            raise
        scoring = request.scoring(
            release, serving.other(request.model), every_score=any(it.datatype == "FP32" for it in wanted)
        )
        answer = await self._dispatcher.score(scoring, call)
        return answer if isinstance(answer, bytes) else responses.infer_response(request, answer, wanted)

    async def model_stream_infer(self, incoming: AsyncIterator[bytes], context: Context, arrival: Arrival) -> None:
        # Clients may rely on this order: it is Triton's for models with one response per request.
        def answer(raw: bytes) -> Coroutine[Any, Any, pb.ModelStreamInferResponse]:
            return self._answer_one(raw, context, arrival)

        await self._streams.answer(incoming, answer, context.write, in_order=True)

    async def model_config(self, raw: bytes, context: Context, arrival: Arrival) -> pb.ModelConfigResponse:
        asked = await read_message(pb.ModelConfigRequest, raw)
        found = catalogue.loaded(self._status.models.serving, asked.name, asked.version)
        return pb.ModelConfigResponse(config=catalogue.config(found[0]))

    async def model_statistics(self, raw: bytes, context: Context, arrival: Arrival) -> pb.ModelStatisticsResponse:
        if not arrival.caller.sees_precomputed:
            raise PermissionDenied(
                "the statistics tell how many texts had been scored before: the token permits no look"
            )
        asked, serving = await read_message(pb.ModelStatisticsRequest, raw), self._status.models.serving
        found = catalogue.loaded(serving, asked.name, asked.version) if asked.name else serving.models.values()
        return pb.ModelStatisticsResponse(model_stats=[responses.statistics(model) for model in found])

    async def repository_index(self, raw: bytes, context: Context, arrival: Arrival) -> pb.RepositoryIndexResponse:
        asked = await read_message(pb.RepositoryIndexRequest, raw)
        internals = arrival.caller.sees_internals
        models = catalogue.index(self._status.models.serving, self._status.rollout, asked.ready, internals)
        return pb.RepositoryIndexResponse(models=models)

    @property
    def _ready(self) -> bool:
        return self._readiness.ready and not self._status.draining

    async def _answer_one(self, raw: bytes, context: Context, arrival: Arrival) -> pb.ModelStreamInferResponse:
        """Answer one request of a stream; a failure is the answer of its request, and the stream goes on."""
        try:
            response = await self.model_infer(raw, context, arrival)
            if isinstance(response, bytes):
                response = pb.ModelInferResponse.FromString(response)
        except Exception as error:  # noqa: BLE001 - the caller gets a status for any error of this request
            request_id = outlines.name(pb.ModelInferRequest, "id", raw)
            return responses.stream_failure(request_id, rpc_handlers.explain(error))
        # Marks the last response of a request for clients that expect several.
        response.parameters["triton_final_response"].bool_param = True
        return pb.ModelStreamInferResponse(infer_response=response)

"""inference.GRPCInferenceService: translation between the wire and the dispatcher, nothing else."""

from collections.abc import AsyncIterator, Callable

import grpc

from protos.inference import open_inference_pb2 as pb
from realtime_service import handlers
from realtime_service.dispatch import Dispatcher
from realtime_service.errors import MessageTooLarge, NotFound
from realtime_service.handlers import Context
from realtime_service.listening import Readiness
from realtime_service.models import Model
from realtime_service.open_inference import catalogue, replies
from realtime_service.open_inference.catalogue import Tensor
from realtime_service.open_inference.requests import SCORES, InferRequest, infer_request
from realtime_service.requests import parse
from realtime_service.status import Status
from realtime_service.streams import Streams
from realtime_service.telemetry import Outcome, Telemetry
from shared_model.errors import BadInput

SERVICE = "inference.GRPCInferenceService"


class OpenInferenceServicer:
    """Handlers take raw bytes (see `realtime_service.requests`) and return messages, or write them to the context."""

    def __init__(
        self, dispatcher: Dispatcher, streams: Streams, status: Status, readiness: Readiness, telemetry: Telemetry
    ) -> None:
        self._dispatcher = dispatcher
        self._streams = streams
        self._status = status
        self._readiness = readiness
        self._telemetry = telemetry

    def handlers(self) -> "grpc.GenericRpcHandler[bytes, object]":
        methods = {
            "ServerLive": self.server_live,
            "ServerReady": self.server_ready,
            "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.model_metadata,
            "ModelInfer": self.model_infer,
            "ModelConfig": self.model_config,
            "ModelStatistics": self.model_statistics,
            "RepositoryIndex": self.repository_index,
        }
        unary = {name: handlers.unary(method) for name, method in methods.items()}
        return grpc.method_handlers_generic_handler(
            SERVICE, {**unary, "ModelStreamInfer": handlers.conversing(self.model_stream_infer)}
        )

    async def server_live(self, raw: bytes, context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, raw: bytes, context: Context) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._ready)

    async def model_ready(self, raw: bytes, context: Context) -> pb.ModelReadyResponse:
        """A model that is not served is not ready; asking is no mistake."""
        asked = parse(pb.ModelReadyRequest, raw)
        try:
            catalogue.loaded(self._status.models.serving, asked.name, asked.version)
        except NotFound:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=self._ready)

    async def server_metadata(self, raw: bytes, context: Context) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(
            name=catalogue.SERVER, version=catalogue.VERSION, extensions=catalogue.EXTENSIONS
        )

    async def model_metadata(self, raw: bytes, context: Context) -> pb.ModelMetadataResponse:
        asked = parse(pb.ModelMetadataRequest, raw)
        found = catalogue.loaded(self._status.models.serving, asked.name, asked.version)
        return catalogue.metadata(found)

    async def model_infer(self, raw: bytes, context: Context) -> pb.ModelInferResponse:
        caller = handlers.caller(context)
        request, model, wanted = self._understood(raw, caller)
        scoring = request.scoring(model.release, every_score=any(it.name == SCORES for it in wanted))
        answer = await self._dispatcher.score(scoring, caller, context.time_remaining())
        return replies.infer_response(request, answer, wanted)

    async def model_stream_infer(self, incoming: AsyncIterator[bytes], context: Context) -> None:
        async def answer(raw: bytes) -> pb.ModelStreamInferResponse:
            return await self._answer_one(raw, context)

        # As Triton answers for models that give one response per request: clients may rely on the order.
        await self._streams.answer(incoming, answer, context.write, in_order=True)

    async def model_config(self, raw: bytes, context: Context) -> pb.ModelConfigResponse:
        asked = parse(pb.ModelConfigRequest, raw)
        found = catalogue.loaded(self._status.models.serving, asked.name, asked.version)
        return pb.ModelConfigResponse(config=catalogue.config(found[0]))

    async def model_statistics(self, raw: bytes, context: Context) -> pb.ModelStatisticsResponse:
        asked, serving = parse(pb.ModelStatisticsRequest, raw), self._status.models.serving
        found = catalogue.loaded(serving, asked.name, asked.version) if asked.name else serving.models.values()
        return pb.ModelStatisticsResponse(model_stats=[replies.statistics(model) for model in found])

    async def repository_index(self, raw: bytes, context: Context) -> pb.RepositoryIndexResponse:
        asked = parse(pb.RepositoryIndexRequest, raw)
        models = catalogue.index(self._status.models.serving, self._status.rollout, asked.ready)
        return pb.RepositoryIndexResponse(models=models)

    @property
    def _ready(self) -> bool:
        return self._readiness.complete and not self._status.draining

    def _understood(self, raw: bytes, caller: Callable[[], str]) -> tuple[InferRequest, Model, list[Tensor]]:
        """What is asked, of which model, for which outputs. Raises: BadInput, MessageTooLarge, NotFound."""
        try:
            request = infer_request(raw)
            model = catalogue.choose(self._status.models.serving, request.model, request.version, caller)
            return request, model, catalogue.wanted(request, model)
        except (BadInput, MessageTooLarge, NotFound):
            self._telemetry.ended(None, Outcome.INVALID)
            raise

    async def _answer_one(self, raw: bytes, context: Context) -> pb.ModelStreamInferResponse:
        """One request's failure is its own: it is answered in the stream, and the stream goes on."""
        try:
            response = await self.model_infer(raw, context)
        except Exception as error:  # noqa: BLE001 - whatever it was, the caller is told of this request
            return replies.stream_failure(_id(raw), handlers.explain(error))
        # Where a model could give several responses to a request, clients count on being told which is the last.
        response.parameters["triton_final_response"].bool_param = True
        return pb.ModelStreamInferResponse(infer_response=response)


def _id(raw: bytes) -> str:
    try:
        return pb.ModelInferRequest.FromString(raw).id
    except Exception:  # noqa: BLE001 - the id of a message that cannot be read is not known
        return ""

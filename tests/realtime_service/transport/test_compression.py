"""Compressed requests: taken as others are, in any method, and never decompressed beyond a caller's bytes."""

import asyncio
import contextlib
import gzip
import threading
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st

from protos.inference import open_inference_pb2
from protos.scoring.v1 import link_pb2, scoring_pb2
from realtime_service.errors import MessageTooLarge
from realtime_service.routing.inflight import Inflight
from realtime_service.settings import ServiceSettings
from realtime_service.transport import compression
from realtime_service.transport.authentication import Callers, TokenRules
from realtime_service.transport.call_context import ContextReader
from realtime_service.transport.messages import MAX_MESSAGE_BYTES
from realtime_service.transport.rpc_handlers import Arrival, Context, Handlers
from realtime_service.transport.stream_turns import StreamTurns
from realtime_service.transport.token_keys import TokenKeys
from shared_model.clock import SystemClock
from shared_model.errors import BadInput
from tests.attack import hostile
from tests.realtime_service.conftest import RunningService
from tests.realtime_service.listeners import listening

COMPRESSORS: tuple[Callable[[bytes], bytes], ...] = (gzip.compress, zlib.compress)
COMPRESSIONS = (grpc.Compression.Gzip, grpc.Compression.Deflate)
MESSAGES = (
    scoring_pb2.ScoreRequest,
    scoring_pb2.SubmitRequest,
    scoring_pb2.GetResultRequest,
    scoring_pb2.WatchResultsRequest,
    scoring_pb2.DescribeRequest,
    open_inference_pb2.ModelInferRequest,
    open_inference_pb2.ModelReadyRequest,
    open_inference_pb2.ModelStatisticsRequest,
    open_inference_pb2.RepositoryIndexRequest,
    link_pb2.LinkCalls,
    health_pb2.HealthCheckRequest,
    reflection_pb2.ServerReflectionRequest,
)


@given(st.binary(max_size=1000), st.sampled_from(COMPRESSORS))
def test_a_message_comes_back_as_it_was(raw: bytes, compress: Callable[[bytes], bytes]) -> None:
    packed = compress(raw)
    assert compression.is_compressed(packed)
    assert compression.parsed_size(packed) >= len(raw)
    # No message begins as a compressed one: see below.
    assert compression.is_compressed(raw) or compression.parsed_size(raw) == len(raw)
    assert compression.decompress(packed, len(raw)) == raw


@pytest.mark.parametrize("kind", MESSAGES)
def test_no_message_begins_as_a_compressed_one(kind: type) -> None:
    """First bytes of fields: number and type."""
    firsts = {field.number << 3 | wire for field in kind.DESCRIPTOR.fields for wire in (0, 1, 2, 5)}  # type: ignore[attr-defined]
    for first in firsts:
        assert not any(compression.is_compressed(bytes((first & 255, second))) for second in range(256))


@pytest.mark.parametrize("compress", COMPRESSORS)
def test_damage_is_the_callers(compress: Callable[[bytes], bytes]) -> None:
    packed = compress(b"where is my card" * 100)
    for damaged in (packed[:-1], packed[:20], packed + b"x", packed[:10] + b"\xff\xff" + packed[12:]):
        with pytest.raises(BadInput, match="request: cannot be decompressed"):
            compression.decompress(damaged, MAX_MESSAGE_BYTES)


def test_a_message_that_is_larger_than_it_says_is_refused() -> None:
    packed = gzip.compress(bytes(1_000_000))
    with pytest.raises(MessageTooLarge):
        compression.decompress(packed[:-4] + (1000).to_bytes(4, "little"), 1000)
    assert compression.parsed_size(gzip.compress(bytes(MAX_MESSAGE_BYTES + 1))) == MAX_MESSAGE_BYTES + 1


@pytest.mark.parametrize("of", COMPRESSIONS)
def test_each_kind_of_method_takes_compressed_requests(of: grpc.Compression, service: RunningService) -> None:
    text = "where is my card " * 50
    method = "/scoring.v1.ScoringService/"
    score = scoring_pb2.ScoreRequest(texts=[text], request_id="compressed")
    with grpc.insecure_channel(service.address, compression=of) as channel:
        one = channel.unary_unary(f"{method}Score")(score.SerializeToString(), timeout=20)
        stream = channel.stream_stream(f"{method}ScoreStream")(iter([score.SerializeToString()] * 2), timeout=20)
        several = [scoring_pb2.ScoreStreamResponse.FromString(raw) for raw in stream]
        name = "scoring.v1.ScoringService/latency"
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name), timeout=20)
        question = reflection_pb2.ServerReflectionRequest(file_containing_symbol="scoring.v1.ScoringService")
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        known = next(reflection.ServerReflectionInfo(iter([question]), timeout=20))
    assert len(scoring_pb2.ScoreResponse.FromString(one).results) == 1
    assert [len(it.response.results) for it in several] == [1, 1]
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert known.file_descriptor_response.file_descriptor_proto


@contextlib.asynccontextmanager
async def measuring(reader: ContextReader) -> AsyncIterator[str]:
    """The address of a service that answers with the size of the request."""

    async def size(raw: bytes, context: Context, arrival: Arrival) -> scoring_pb2.ScoreResponse:
        return scoring_pb2.ScoreResponse(request_id=str(len(raw)))

    handler = Handlers(reader).unary(size)
    async with listening(grpc.method_handlers_generic_handler("a.B", {"Size": handler})) as address:
        yield address


async def test_messages_are_decompressed_within_the_bytes_of_their_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty messages of 4.2 MB come in 10 KB each, while the first of them is being decompressed."""
    full, begun, decompress = threading.Event(), list[int](), compression.decompress

    def waits(raw: bytes, most_bytes: int) -> bytes:
        begun.append(most_bytes)
        assert full.wait(20)
        return decompress(raw, most_bytes)

    monkeypatch.setattr(compression, "decompress", waits)
    settings = ServiceSettings()
    callers = Callers(TokenKeys(settings, SystemClock()), TokenRules.of(settings), SystemClock())
    inflight, calls = Inflight("bytes", 64_000_000, 16_000_000), Inflight("calls", 100, 100)
    reader = ContextReader(callers, lambda metadata: False, inflight, calls, inflight, StreamTurns(8, 2))
    _, raw = hostile.long_texts()
    ends: Counter[object] = Counter()
    async with measuring(reader) as address, grpc.aio.insecure_channel(address, compression=COMPRESSIONS[0]) as channel:
        ask = channel.unary_unary("/a.B/Size")  # type: ignore[call-arg]

        async def call() -> None:
            try:
                ends[scoring_pb2.ScoreResponse.FromString(await ask(raw, timeout=20)).request_id] += 1
            except grpc.aio.AioRpcError as error:
                ends[error.code()] += 1
            if ends[grpc.StatusCode.RESOURCE_EXHAUSTED] == 17:
                full.set()

        await asyncio.gather(*(call() for _ in range(20)))
    assert ends == {str(len(raw)): 3, grpc.StatusCode.RESOURCE_EXHAUSTED: 17}
    assert begun == [len(raw)] * 3
    assert inflight.held == 0

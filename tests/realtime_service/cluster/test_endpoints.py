"""A router in front of endpoints with different lanes, all real processes: each request reaches its lane."""

import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import redis
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.inference import open_inference_pb2 as pb
from protos.inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from realtime_service.client import CallError, Client
from realtime_service.cluster import forwarded_context
from realtime_service.cluster.peer_trust import CLUSTER_TOKEN
from shared_model.redis_store import keys
from shared_model.types import Priority, ServingPath
from tests.realtime_service.conftest import TEN_TIMES, RunningService, eventually
from tests.realtime_service.rollout.stage import Stage, staged

pytestmark = pytest.mark.heavy

SERVICE = "scoring.v1.ScoringService"
_ANSWERED = re.compile(
    r'^tandem_requests_total\{model="[^"]*",outcome="(?:met|late)",path="(?P<path>\w+)"\} (?P<count>\S+)', re.M
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The stage's own replica is the latency endpoint."""
    with staged(tmp_path_factory.mktemp("stage"), TANDEM_LANES="latency,dynamic", **TEN_TIMES) as made:
        yield made


@pytest.fixture(scope="module")
def throughput(stage: Stage) -> Iterator[RunningService]:
    running = stage.another_replica("throughput", TANDEM_LANES="throughput", **TEN_TIMES)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def router(stage: Stage, throughput: RunningService) -> Iterator[RunningService]:
    running = stage.another_replica("router", TANDEM_LANES="none", **TEN_TIMES)
    with Client(running.address) as client:
        eventually(lambda: {it.address for it in client.describe().replicas} >= {throughput.address})
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def client(router: RunningService) -> Iterator[Client]:
    with Client(router.address) as connected:
        yield connected


def answered(service: RunningService) -> dict[str, int]:
    """Requests that a process has answered without forwarding, by path."""
    with urllib.request.urlopen(service.metrics, timeout=10) as page:  # noqa: S310 - our own address
        counts = Counter[str]()
        for it in _ANSWERED.finditer(page.read().decode()):
            counts[it["path"]] += round(float(it["count"]))
        return +counts


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"priority": Priority.REAL_TIME}, ServingPath.LATENCY),
        ({"timeout_ms": 900}, ServingPath.LATENCY),
        ({}, ServingPath.DYNAMIC),
        ({"priority": Priority.BATCH}, ServingPath.THROUGHPUT),
        ({"timeout_ms": 20_000}, ServingPath.THROUGHPUT),
    ],
)
def test_each_kind_reaches_the_endpoint_that_has_its_lane(
    stage: Stage,
    throughput: RunningService,
    router: RunningService,
    client: Client,
    options: dict[str, object],
    path: ServingPath,
) -> None:
    endpoints = {"latency": stage.replica, "throughput": throughput}
    right = "throughput" if path is ServingPath.THROUGHPUT else "latency"
    before = {name: answered(it) for name, it in endpoints.items()}
    for number in range(10):
        answer = client.score(f"where is my card {number}", **options)  # type: ignore[arg-type]
        assert answer.path is path
        assert answer.release in stage.favourites
        assert answer.label == stage.favourites[answer.release]
    for name, endpoint in endpoints.items():
        grown = answered(endpoint).get(path, 0) - before[name].get(path, 0)
        assert grown == (10 if name == right else 0)
    assert answered(router) == {}


def test_several_texts_and_streams_pass_a_router(client: Client) -> None:
    answer = client.score(["where is my card", "my card", "please"], priority=Priority.REAL_TIME)
    assert (len(answer.results), answer.path) == (3, ServingPath.DYNAMIC)
    streamed = dict(client.stream([f"card {number}" for number in range(20)]))
    assert sorted(streamed) == list(range(20))
    assert not [it for it in streamed.values() if isinstance(it, CallError)]


def test_a_router_relays_an_endpoints_error_unchanged(router: RunningService, client: Client) -> None:
    with pytest.raises(CallError) as refused:
        client.score("my card", release="unknown-000000000000")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with grpc.insecure_channel(router.address) as channel, pytest.raises(grpc.RpcError) as paired:
        ScoringServiceStub(channel).Score(scoring_pb2.ScoreRequest(texts=["a"], text_pairs=["b"]), timeout=10)
    assert paired.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert paired.value.details() == "text_pairs: is set, but this release reads single texts"


def test_submitted_work_passes_a_router_to_an_idle_lane(client: Client) -> None:
    client.submit("through-a-router", "where is my card")
    (ended,) = client.watch(["through-a-router"], seconds=60.0)
    assert ended.answer


def test_the_lane_that_a_caller_names(router: RunningService) -> None:
    with grpc.insecure_channel(router.address) as channel:
        score = ScoringServiceStub(channel).Score
        request = scoring_pb2.ScoreRequest(texts=["my card"], priority=scoring_pb2.REAL_TIME)
        answer = score(request, timeout=10, metadata=(("x-tandem-lane", "throughput"),))
        assert (answer.path, answer.reason) == (scoring_pb2.THROUGHPUT, "lane named by the caller")
        with pytest.raises(grpc.RpcError) as refused:
            score(request, timeout=10, metadata=(("x-tandem-lane", "fast"),))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "x-tandem-lane: 'fast' is no lane; there are latency, dynamic, throughput"


def test_a_call_without_the_cluster_token_decides_nothing(stage: Stage) -> None:
    claimed = forwarded_context.ForwardedContext(ServingPath.DYNAMIC, "", "because I say so").metadata()
    guessed = ((CLUSTER_TOKEN, "guessed"), *claimed)
    with grpc.insecure_channel(stage.replica.address) as channel:
        request = scoring_pb2.ScoreRequest(texts=["my card"], priority=scoring_pb2.REAL_TIME)
        answer = ScoringServiceStub(channel).Score(request, timeout=10, metadata=guessed)
    assert (answer.path, answer.reason) == (scoring_pb2.LATENCY, "priority REAL_TIME")


def test_a_forwarded_call_is_answered_or_refused_and_never_forwarded(
    stage: Stage, router: RunningService, throughput: RunningService
) -> None:
    with redis.Redis.from_url(stage.redis.url) as store:
        cluster_token = bytes(store.get(keys.replica_word()) or b"").decode()

    def score(service: RunningService, path: ServingPath) -> scoring_pb2.ScoreResponse:
        decided = forwarded_context.ForwardedContext(path, "", "decided elsewhere").metadata()
        with grpc.insecure_channel(service.address) as channel:
            request = scoring_pb2.ScoreRequest(texts=["my card"], priority=scoring_pb2.REAL_TIME)
            return ScoringServiceStub(channel).Score(
                request, timeout=10, metadata=((CLUSTER_TOKEN, cluster_token), *decided)
            )

    answer = score(stage.replica, ServingPath.DYNAMIC)
    assert (answer.path, answer.reason) == (scoring_pb2.DYNAMIC, "decided elsewhere")
    for elsewhere in (stage.replica, router):
        with pytest.raises(grpc.RpcError) as refused:
            score(elsewhere, ServingPath.THROUGHPUT)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_open_inference_passes_a_router(stage: Stage, router: RunningService) -> None:
    with grpc.insecure_channel(router.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        assert stub.ServerReady(pb.ServerReadyRequest(), timeout=10).ready
        assert stub.ModelReady(pb.ModelReadyRequest(name="first"), timeout=10).ready
        described = stub.ModelMetadata(pb.ModelMetadataRequest(name="first"), timeout=10)
        assert described.versions[0] in stage.favourites
        tensor = pb.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(b"where is my card")
        answer = stub.ModelInfer(pb.ModelInferRequest(model_name="first", inputs=[tensor]), timeout=10)
        assert [it.name for it in answer.outputs] == ["scores", "label"]
        with pytest.raises(grpc.RpcError) as missing:
            stub.ModelInfer(pb.ModelInferRequest(model_name="unknown", inputs=[tensor]), timeout=10)
        assert missing.value.code() is grpc.StatusCode.NOT_FOUND


def test_the_health_of_a_router_is_that_of_its_endpoints(stage: Stage, tmp_path: Path) -> None:
    with staged(tmp_path, TANDEM_LANES="latency") as alone:
        router = alone.another_replica("router", TANDEM_LANES="none")
        with grpc.insecure_channel(router.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)

            def serves(name: str) -> bool:
                answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
                return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

            eventually(lambda: serves(f"{SERVICE}/latency"))
            assert serves(SERVICE)
            assert not serves(f"{SERVICE}/throughput")
            more = alone.another_replica("more", TANDEM_LANES="dynamic,throughput")
            eventually(lambda: serves(f"{SERVICE}/throughput"))
            assert more.stop() == 0
            eventually(lambda: not serves(f"{SERVICE}/throughput"))
            assert serves(SERVICE)
            assert serves(f"{SERVICE}/latency")
        assert router.stop() == 0


def test_a_new_endpoint_takes_calls_within_a_second_and_two_routers_agree(stage: Stage, router: RunningService) -> None:
    second = stage.another_replica("second-router", TANDEM_LANES="none")
    with Client(router.address) as one, Client(second.address) as other:
        eventually(lambda: len(other.describe().replicas) == len(one.describe().replicas))
        joined = stage.another_replica("joined", TANDEM_LANES="dynamic")
        ready = time.monotonic()
        for client in (one, other):
            before = answered(joined).get("dynamic", 0)
            while answered(joined).get("dynamic", 0) == before:
                client.score("where is my card")
                assert time.monotonic() - ready < 3.0, "a second, and the machine's noise"
        assert joined.stop() == 0
        for client in (one, other):
            assert all(client.score("my card").path is ServingPath.DYNAMIC for _ in range(20))
    assert second.stop() == 0

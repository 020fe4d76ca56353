"""A replica with some of the lanes: its variants, the health of each lane, and the paths of requests."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from realtime_service.settings import SERVED
from realtime_service.transport.health import Readiness
from realtime_service.transport.listener import bind, make_listener
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.types import ServingPath
from tests.realtime_service.conftest import RunningService, start_service
from tests.realtime_service.rollout import tiny_releases

SERVICE = "scoring.v1.ScoringService"
_STATES = health_pb2.HealthCheckResponse.ServingStatus


@pytest.fixture(scope="module")
def only_latency(tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("lanes")
    store = Store(folder / "releases")
    release = tiny_releases.seal(store, "tiny")
    pointer.promote(store, None, release.id)
    running = start_service(
        folder, Path(store.files.root), TANDEM_LANES="latency", TANDEM_RELEASE=release.id, REDIS_URL=redis_server.url
    )
    yield running
    assert running.stop() == 0


@pytest.fixture
def channel(only_latency: RunningService) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(only_latency.address) as opened:
        yield opened


def health(channel: grpc.Channel, name: str) -> str:
    request = health_pb2.HealthCheckRequest(service=name)
    return str(_STATES.Name(health_pb2_grpc.HealthStub(channel).Check(request, timeout=10).status))


def test_only_its_lane_and_variant_are_there(channel: grpc.Channel) -> None:
    described = ScoringServiceStub(channel).Describe(scoring_pb2.DescribeRequest(), timeout=10)
    assert [(lane.name, lane.precision) for lane in described.lanes] == [("latency", "int8")]
    for name in ("", SERVICE, f"{SERVICE}/latency"):
        assert health(channel, name) == "SERVING"
    with pytest.raises(grpc.RpcError) as unknown:
        health(channel, f"{SERVICE}/dynamic")
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_single_text_of_a_missing_lane_is_answered_here(channel: grpc.Channel) -> None:
    answer = ScoringServiceStub(channel).Score(scoring_pb2.ScoreRequest(texts=["my card"]), timeout=10)
    assert (answer.path, answer.reason) == (
        scoring_pb2.LATENCY,
        "neither urgent nor bulk; no dynamic lane; no throughput lane",
    )


def test_several_texts_are_for_another_replica(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        ScoringServiceStub(channel).Score(scoring_pb2.ScoreRequest(texts=["my", "card"]), timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "no replica has a lane that could take this request" in refused.value.details()


async def test_health_follows_each_lane_and_the_whole_any_of_them() -> None:
    readiness, listener = Readiness((SERVICE, "inference.Other"), SERVED), make_listener(shared=False)
    listener.add_generic_rpc_handlers((readiness.handlers(),))
    address = bind(listener, "127.0.0.1:0")
    await listener.start()
    async with grpc.aio.insecure_channel(address) as channel:

        async def serving() -> set[str]:
            names = ["", SERVICE, "inference.Other", *(f"{SERVICE}/{lane}" for lane in SERVED)]
            stub = health_pb2_grpc.HealthStub(channel)
            answers = {name: await stub.Check(health_pb2.HealthCheckRequest(service=name)) for name in names}
            return {name for name, answer in answers.items() if answer.status == health_pb2.HealthCheckResponse.SERVING}

        whole = {"", SERVICE, "inference.Other"}
        latency, dynamic, throughput = (f"{SERVICE}/{lane}" for lane in SERVED)
        assert await serving() == set()
        readiness.set(ServingPath.LATENCY, True)
        assert await serving() == {*whole, latency}
        readiness.set(ServingPath.DYNAMIC, True)
        readiness.set(ServingPath.LATENCY, True)
        assert await serving() == {*whole, latency, dynamic}
        readiness.set(ServingPath.THROUGHPUT, True)
        readiness.set(ServingPath.DYNAMIC, False)
        readiness.set(ServingPath.LATENCY, False)
        assert await serving() == {*whole, throughput}
        readiness.set(ServingPath.THROUGHPUT, False)
        assert await serving() == set()
        readiness.set(ServingPath.DYNAMIC, True)
        assert await serving() == {*whole, dynamic}
        readiness.close()
        assert await serving() == set()
    await listener.stop(None)

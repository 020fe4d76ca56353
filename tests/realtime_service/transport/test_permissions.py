"""Permissions of callers where tokens are required, at a replica and through a router."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.inference import open_inference_pb2 as pb
from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.storage_pb2 import PublishedScore
from realtime_service import __main__ as command
from realtime_service.cli import chat
from realtime_service.client import Client
from shared_model.published.epochs import Epoch
from shared_model.published.publish import publish
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from shared_model.types import Priority, ServingPath
from tests.realtime_service import night
from tests.realtime_service.conftest import TEN_TIMES, RunningService, eventually, start_service
from tests.realtime_service.rollout import tiny_releases
from tests.realtime_service.tokens import Metadata, bearer, key_file, token

pytestmark = pytest.mark.heavy

SCORING, INFERENCE = "scoring.v1.ScoringService", "inference.GRPCInferenceService"
TEXT = scoring_pb2.ScoreRequest(texts=["where is my card"], request_id="r")
TENSOR = pb.ModelInferRequest.InferInputTensor(
    name="text",
    datatype="BYTES",
    shape=[1],
    contents=pb.InferTensorContents(bytes_contents=[b"card"]),
)
INFER = pb.ModelInferRequest(model_name="tiny", inputs=[TENSOR])
NOT_SCORERS, SCORERS = ("replica", "none"), ("caller", "operator", "night")
ALL_ROLES = (*SCORERS, *NOT_SCORERS)
#: Every method: a request, and the roles of a token that may call it.
METHODS: dict[str, tuple[Any, tuple[str, ...]]] = {
    f"/{SCORING}/Score": (TEXT, SCORERS),
    f"/{SCORING}/ScoreStream": (TEXT, SCORERS),
    f"/{SCORING}/Submit": (scoring_pb2.SubmitRequest(request=TEXT), SCORERS),
    f"/{SCORING}/SubmitStream": (scoring_pb2.SubmitRequest(request=TEXT), SCORERS),
    f"/{SCORING}/GetResult": (scoring_pb2.GetResultRequest(request_id="r"), SCORERS),
    f"/{SCORING}/WatchResults": (scoring_pb2.WatchResultsRequest(request_ids=["r"]), SCORERS),
    f"/{SCORING}/Lookup": (scoring_pb2.LookupRequest(ids=["m"]), ("operator", "night")),
    f"/{SCORING}/Describe": (scoring_pb2.DescribeRequest(), ALL_ROLES),
    f"/{INFERENCE}/ServerLive": (pb.ServerLiveRequest(), ALL_ROLES),
    f"/{INFERENCE}/ServerReady": (pb.ServerReadyRequest(), ALL_ROLES),
    f"/{INFERENCE}/ServerMetadata": (pb.ServerMetadataRequest(), ALL_ROLES),
    f"/{INFERENCE}/ModelReady": (pb.ModelReadyRequest(name="tiny"), ALL_ROLES),
    f"/{INFERENCE}/ModelMetadata": (pb.ModelMetadataRequest(name="tiny"), ALL_ROLES),
    f"/{INFERENCE}/ModelConfig": (pb.ModelConfigRequest(name="tiny"), ALL_ROLES),
    f"/{INFERENCE}/ModelStatistics": (pb.ModelStatisticsRequest(name="tiny"), ("operator", "night")),
    f"/{INFERENCE}/RepositoryIndex": (pb.RepositoryIndexRequest(), ALL_ROLES),
    f"/{INFERENCE}/ModelInfer": (INFER, SCORERS),
    f"/{INFERENCE}/ModelStreamInfer": (INFER, SCORERS),
}


@dataclass(frozen=True)
class Stage:
    """A replica and a router that require tokens."""

    release: Release
    redis: RedisServer
    replica: RunningService
    router: RunningService

    @property
    def processes(self) -> tuple[RunningService, ...]:
        return self.replica, self.router


@pytest.fixture(scope="module")
def stage(own_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """On a Redis of its own: a router asks every replica that it finds there."""
    folder = tmp_path_factory.mktemp("permissions")
    store = Store(folder / "releases")
    release = tiny_releases.seal(store, "tiny")
    pointer.promote(store, None, release.id)
    with RedisServer(StateSettings(state=folder)) as redis_server:
        yield from _started(folder, store, release, redis_server)


def _started(folder: Path, store: Store, release: Release, redis_server: RedisServer) -> Iterator[Stage]:
    common = {"REDIS_URL": redis_server.url, "TANDEM_AUTH": "required", "TANDEM_TOKEN_KEYS": str(key_file(folder))}
    common |= TEN_TIMES
    # Of no text that any test sends.
    night.publish(redis_server, release.id, {"m": bytes(16)}, ds="2026-01-13")
    replica = start_service(folder / "replica", Path(store.files.root), **common)
    router = start_service(folder / "router", Path(store.files.root), TANDEM_LANES="none", **common)
    yield Stage(release, redis_server, replica, router)
    assert (router.stop(), replica.stop()) == (0, 0)


def ended(running: RunningService, method: str, metadata: Metadata) -> grpc.StatusCode:
    """How a call ends."""
    request, _ = METHODS[method]
    with grpc.insecure_channel(running.address) as channel:
        try:
            if method.endswith("WatchResults"):
                next(channel.unary_stream(method)(request.SerializeToString(), timeout=20, metadata=metadata))
            elif "Stream" in method:
                sent = iter([request.SerializeToString()])
                list(channel.stream_stream(method)(sent, timeout=20, metadata=metadata))
            else:
                channel.unary_unary(method)(request.SerializeToString(), timeout=20, metadata=metadata)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_the_table_has_every_method() -> None:
    services = (scoring_pb2.DESCRIPTOR.services_by_name["ScoringService"],)
    services += (pb.DESCRIPTOR.services_by_name["GRPCInferenceService"],)
    declared = {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}
    assert METHODS.keys() == declared


@pytest.mark.parametrize("method", METHODS)
def test_without_a_valid_token_no_method_answers(stage: Stage, method: str) -> None:
    for running in stage.processes:
        for metadata in ((), (("x-caller-id", "alice"),), bearer("rubbish"), (("authorization", "Basic Ym9iOng="),)):
            assert ended(running, method, metadata) is grpc.StatusCode.UNAUTHENTICATED


def test_health_checks_need_none(stage: Stage) -> None:
    for running in stage.processes:
        with grpc.insecure_channel(running.address) as channel:
            assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20).status == 1


@pytest.mark.parametrize("role", ALL_ROLES)
def test_a_role_permits_its_methods_and_no_other(stage: Stage, role: str) -> None:
    roles = [] if role == "none" else [role]
    metadata = bearer(token(sub=f"{role}-1", roles=roles))
    # Submitted first, so that there is a result.
    ended(stage.replica, f"/{SCORING}/Submit", metadata)
    for running in stage.processes:
        found = {method: ended(running, method, metadata) for method in METHODS}
        expected = {
            method: grpc.StatusCode.OK if role in allowed else grpc.StatusCode.PERMISSION_DENIED
            for method, (_, allowed) in METHODS.items()
        }
        assert found == expected


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), error.value.details()


@pytest.fixture(params=["replica", "router"])
def connect(request: pytest.FixtureRequest, stage: Stage) -> Iterator[Callable[..., Client]]:
    """Makes a client with a token of these claims."""
    made: list[Client] = []
    address = (stage.replica if request.param == "replica" else stage.router).address

    def connected(**claims: Any) -> Client:
        made.append(Client(address, token=token(**claims)))
        return made[-1]

    yield connected
    for client in made:
        client.close()


def test_a_lane_that_is_not_permitted_is_refused_where_it_is_named_and_avoided_where_it_is_not(
    connect: Callable[..., Client],
) -> None:
    dynamic_only = connect(lanes=["dynamic"])
    says = refusal(lambda: dynamic_only.score("card", lane="latency"))
    assert says == (grpc.StatusCode.PERMISSION_DENIED, "the token does not permit the latency lane")
    for way in (
        {"priority": Priority.REAL_TIME},
        {"timeout_ms": 900},
        {"priority": Priority.BATCH},
        {"lane": "dynamic"},
    ):
        assert dynamic_only.score("card", **way).path == ServingPath.DYNAMIC
    assert refusal(lambda: connect(lanes=[]).score("card"))[0] is grpc.StatusCode.PERMISSION_DENIED
    assert refusal(lambda: dynamic_only.submit("r-9", "card"))[0] is grpc.StatusCode.PERMISSION_DENIED
    assert connect(lanes=["deferred"]).submit("r-9", "card").request_id == "r-9"


def test_a_model_that_is_not_permitted_is_refused(stage: Stage, connect: Callable[..., Client]) -> None:
    assert connect(models=["tiny"]).score("card").release == stage.release.id
    other = connect(models=["other"])
    for call in (
        lambda: other.score("card"),
        lambda: other.score("card", release=stage.release.id),
        lambda: other.submit("r-8", "card"),
    ):
        assert refusal(call)[0] is grpc.StatusCode.PERMISSION_DENIED
    assert ended(stage.replica, f"/{INFERENCE}/ModelInfer", bearer(token(models=["other"]))) is (
        grpc.StatusCode.PERMISSION_DENIED
    )


def test_two_callers_use_one_request_id_and_read_their_own_results(connect: Callable[..., Client]) -> None:
    name = uuid.uuid4().hex
    alice, bob = connect(sub="alice"), connect(sub="bob")
    alice.submit(name, "card")
    for read in (lambda: bob.result(name), lambda: list(bob.watch([name]))):
        code, details = refusal(read)
        assert code is grpc.StatusCode.NOT_FOUND
        assert details == f"request_id: {name!r} was not submitted, or its result is no longer kept"
    bob.submit(name, ["card", "please"])
    assert refusal(lambda: alice.submit(name, "please"))[0] is grpc.StatusCode.ALREADY_EXISTS
    for client, texts in ((alice, 1), (bob, 2)):
        [ended] = client.watch([name])
        assert ended.answer
        assert (ended.request_id, ended.answer.message.request_id) == (name, name)
        assert len(ended.answer.results) == texts
        assert client.result(name).answer == ended.answer


def test_only_operators_see_other_replicas_and_the_policy(stage: Stage, connect: Callable[..., Client]) -> None:
    eventually(lambda: len(connect(roles=["operator"]).describe().replicas) == 2)
    shown = connect().describe()
    assert (len(shown.replicas), shown.release, len(shown.lanes)) == (0, stage.release.id, 4)


def test_only_permitted_callers_learn_that_a_text_was_scored_before(
    stage: Stage, connect: Callable[..., Client]
) -> None:
    text = "please where is my card"
    encoder = stage.release.encoder()
    score = PublishedScore(labels=[3, 0], scores=[0.75, 0.25], tokens=6)
    with redis.Redis.from_url(stage.redis.url) as client:
        epoch = Epoch(stage.release.id, "bf16", "2026-01-14", 1)
        publish(client, epoch, {encoder.key(encoder.encode(text)): score}.items())
    permitted = connect(sees_precomputed=True)
    eventually(lambda: permitted.score(text).path == ServingPath.PRECOMPUTED)
    caller = connect()
    eventually(lambda: caller.score(text).label == "label-3")
    # Without it where a busy machine lets the look-up end too late for such a call.
    answers = (caller.score(text, priority=Priority.REAL_TIME) for _ in range(100))
    answer = next((it for it in answers if it.label == "label-3"), None)
    assert answer is not None, "the published score was not asked"
    assert (answer.path, answer.reason) == (ServingPath.LATENCY, "priority REAL_TIME")
    assert (answer.precision, answer.batch_size, answer.queue_us) == ("int8", 1, 0)
    assert answer.compute_us > 0


def test_commands_read_the_token_from_a_file_before_each_call(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, address = tmp_path / "token", ["--address", stage.replica.address]
    assert command.main(["call", "card", *address]) == 1
    assert "UNAUTHENTICATED: a call needs a bearer token" in capsys.readouterr().err
    assert command.main(["describe", *address, "--token-file", str(file)]) == 2
    assert f"--token-file: {file} cannot be read" in capsys.readouterr().err
    file.write_text(token() + "\n")
    for arguments in (["call", "card"], ["describe", "--json"]):
        assert command.main([*arguments, *address, "--token-file", str(file)]) == 0
    assert stage.release.id in capsys.readouterr().out
    # `chat` keeps one client: the file is renewed between two lines.
    lines = iter([token(), "rubbish"])

    def typed(*_: object) -> Iterator[str]:
        for renewed in lines:
            file.write_text(renewed)
            yield "card"

    monkeypatch.setattr(chat, "typed", typed)
    command.main(["chat", *address, "--token-file", str(file)])
    said = capsys.readouterr().out
    assert "label-0" in said
    assert "the bearer token is not valid" in said

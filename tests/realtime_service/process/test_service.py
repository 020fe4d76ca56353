"""The service as a caller sees it: a real process, a real socket, a real release, a real Redis."""

import asyncio
import itertools
import urllib.request
from collections.abc import Callable, Iterator

import grpc
import pytest
import redis
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from protos.scoring.v1.storage_pb2 import DeferredWork, PublishedScore
from realtime_service.client import Answer, AsyncClient, Client
from realtime_service.models.warmup import SPECIALISED_TOKENS
from shared_model import demo_messages
from shared_model.encoding import collate
from shared_model.published.epochs import Epoch, Outcome
from shared_model.published.publish import publish
from shared_model.redis_store import keys
from shared_model.releases.store import Release
from shared_model.types import DeferredState, Device, Precision, Priority, ServingPath
from tests.realtime_service.conftest import RunningService, eventually
from tests.shared_model import further_heads


@pytest.fixture
def raw_call(service: RunningService) -> Iterator[Callable[[str, bytes], bytes]]:
    """Call a method with raw bytes."""
    with grpc.insecure_channel(service.address) as channel:
        yield lambda method, data: channel.unary_unary(f"/scoring.v1.ScoringService/{method}")(data, timeout=10)


def refused(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), error.value.details()


@pytest.mark.parametrize(
    ("arguments", "path", "precision"),
    [
        ({"timeout_ms": 800}, ServingPath.LATENCY, "int8"),
        ({"priority": Priority.REAL_TIME}, ServingPath.LATENCY, "int8"),
        ({}, ServingPath.DYNAMIC, "int8"),
        ({"timeout_ms": 5_000}, ServingPath.DYNAMIC, "int8"),
        ({"priority": Priority.BATCH}, ServingPath.THROUGHPUT, ("bf16", "fp16", "fp32")),
        ({"timeout_ms": 20_000}, ServingPath.THROUGHPUT, ("bf16", "fp16", "fp32")),
    ],
)
def test_each_rule_leads_to_its_lane(
    client: Client, release: Release, arguments: dict[str, object], path: int, precision: str | tuple[str, ...]
) -> None:
    answer = client.score("I am still waiting on my card?", **arguments)
    assert answer.path == path
    assert answer.precision in precision
    assert answer.release == release.id
    assert answer.batch_size == 1
    assert answer.compute_us > 0
    assert answer.reason
    labels = answer.results[0].labels
    assert labels[0].name == "card_arrival"
    assert [label.score for label in labels] == sorted((x.score for x in labels), reverse=True)
    assert len(labels) == 3


def test_an_answer_has_the_scores_of_the_engine(client: Client, release: Release) -> None:
    engine, encoder = release.engine(Precision.INT8, Device.CPU, 1), release.encoder()
    for tokens in SPECIALISED_TOKENS:
        engine.specialise(tokens)
    for number, text in enumerate(itertools.islice(demo_messages.texts(5), 80)):
        # The latency lane runs the shapes compiled for single texts, the dynamic lane those for batches.
        hurried = number % 2 == 0
        scores = release.heads.scores(engine.score(collate([encoder.encode(text)]), single=hurried))
        expected = release.heads.split(scores[0])[0]
        priority = Priority.REAL_TIME if hurried else Priority.NORMAL
        answer = client.score(text, priority=priority, top_k=1).results[0].labels[0]
        assert answer.score == pytest.approx(expected[release.labels.index(answer.name)], abs=1e-3)
        assert answer.score >= expected.max() - 2e-3


def test_the_largest_request_is_taken(client: Client) -> None:
    answer = client.score(["word " * 13_107] * 64, priority=Priority.BATCH, top_k=1)
    assert len(answer.results) == 64
    assert all(result.truncated for result in answer.results)


def test_several_texts_come_back_in_order_and_mark_truncated_ones(client: Client) -> None:
    answer = client.score(["my card has not arrived", "I want to close my account", "money " * 400], top_k=5)
    assert [result.labels[0].name for result in answer.results[:2]] == ["card_arrival", "terminate_account"]
    assert [result.truncated for result in answer.results] == [False, False, True]
    assert answer.results[2].tokens == 256
    assert all(len(result.labels) == 5 for result in answer.results)


def test_concurrent_requests_share_batches(service: RunningService) -> None:
    async def at_once(texts: list[str]) -> list[Answer]:
        async with AsyncClient(service.address) as client:
            # Keeps the device busy until the others have arrived, however slowly.
            first = asyncio.create_task(client.score(["money " * 250] * 64, priority=Priority.BATCH))
            answers = await asyncio.gather(*(client.score(text, priority=Priority.BATCH) for text in texts))
            await first
            return answers

    # All of one padded width.
    texts = [f"where is card {number}" for number in range(100, 200)]
    # Again, because bulk batches stay short for a second after an interactive request, here of another test.
    eventually(lambda: max(answer.batch_size for answer in asyncio.run(at_once(texts))) >= 4)


@pytest.mark.parametrize("way", [{"lane": "throughput"}, {"lane": "dynamic"}])
def test_an_answer_does_not_depend_on_its_batch_mates(client: Client, way: dict[str, object]) -> None:
    """At half precision and at INT8. The bound holds for one padded width: another one rounds a row differently."""
    texts = [text * (1 + number % 4) for number, text in enumerate(itertools.islice(demo_messages.texts(9), 24))]
    together = client.score(texts, top_k=5, **way)
    for text, result in zip(texts, together.results, strict=True):
        (alone,) = client.score(text, top_k=5, **way).results
        scores = {label.name: label.score for label in alone.labels}
        for label in result.labels:
            # The fifth and sixth label of a text may swap.
            assert label.score == pytest.approx(scores.get(label.name, label.score), abs=1e-3)


def test_a_text_scored_last_night_is_answered_from_the_published_epoch(
    client: Client, release: Release, redis_client: "redis.Redis"
) -> None:
    text, other = "this very text was scored at night", "this one was not"
    encoder = release.encoder()
    index = release.labels.index("exchange_rate")
    further = further_heads.published(release.heads)
    score = PublishedScore(labels=[index, 0], scores=[0.75, 0.25], tokens=9, heads=further)
    epoch = Epoch(release.id, "bf16", "2026-01-14", 1)
    published = publish(redis_client, epoch, {encoder.key(encoder.encode(text)): score}.items())
    assert published.outcome is Outcome.MOVED
    eventually(lambda: client.score(text, priority=Priority.REAL_TIME).path == ServingPath.PRECOMPUTED)
    # The encoder ignores case, so the look-up does, too. Repeated, because a slow answer of Redis is not waited for.
    answers: list[Answer] = []
    eventually(
        lambda: answers.append(client.score(text.upper(), top_k=1)) or answers[-1].path == ServingPath.PRECOMPUTED
    )
    answer = answers[-1]
    assert (answer.results[0].labels[0].name, answer.precision, answer.batch_size) == ("exchange_rate", "bf16", 0)
    assert len(answer.results[0].labels) == 1
    assert client.score(other).path == ServingPath.DYNAMIC
    assert client.score([text, other]).path == ServingPath.DYNAMIC
    redis_client.delete(keys.epoch_pointer(release.id))
    eventually(lambda: client.score(text).path == ServingPath.DYNAMIC)


def test_submitted_work_is_answered_by_an_idle_lane_once(client: Client, redis_client: "redis.Redis") -> None:
    assert client.submit("job-1", ["my card has not arrived", "close my account"]).state == DeferredState.ACCEPTED
    assert client.submit("job-1", ["my card has not arrived", "close my account"]).duplicate
    says = refused(lambda: client.submit("job-1", "something else entirely"))
    assert says[0] is grpc.StatusCode.ALREADY_EXISTS
    assert says[1] == "request_id: 'job-1' was submitted before, with other content; choose another id"
    eventually(lambda: client.result("job-1").state == DeferredState.PUBLISHED)
    result = client.result("job-1")
    assert result.computed_by == "idle"
    assert result.answer.path == ServingPath.DEFERRED
    assert [r.labels[0].name for r in result.answer.results] == ["card_arrival", "terminate_account"]
    assert redis_client.xlen(keys.deferred_stream()) == 0


def test_deferred_work_that_cannot_run_fails_with_its_reason(client: Client, redis_client: "redis.Redis") -> None:
    work = DeferredWork(request=scoring_pb2.ScoreRequest(request_id="job-2", texts=["a"], release="gone-000000000000"))
    redis_client.hset(keys.deferred_item("job-2"), "state", "accepted")
    redis_client.xadd(keys.deferred_stream(), {"id": "job-2", "work": work.SerializeToString()})
    eventually(lambda: client.result("job-2").state == DeferredState.FAILED)
    assert "gone-000000000000" in client.result("job-2").failure


def test_an_unknown_result_is_not_found(client: Client) -> None:
    assert refused(lambda: client.result("never-submitted"))[0] is grpc.StatusCode.NOT_FOUND


def test_a_stream_answers_each_request_and_survives_a_bad_one(service: RunningService) -> None:
    texts = list(itertools.islice(demo_messages.texts(8), 150))
    requests = [scoring_pb2.ScoreRequest(request_id=str(i), texts=[text]) for i, text in enumerate(texts)]
    requests[70].ClearField("texts")
    with grpc.insecure_channel(service.address) as channel:
        answers = {a.request_id: a for a in ScoringServiceStub(channel).ScoreStream(iter(requests), timeout=60)}
    assert set(answers) == {str(i) for i in range(150)}
    assert answers["70"].error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert "texts" in answers["70"].error.message
    assert sum(a.HasField("response") for a in answers.values()) == 149


@pytest.mark.parametrize(
    ("request_fields", "field"),
    [
        ({"texts": [""]}, "texts[0]"),
        ({"texts": ["x" * (64 * 1024 + 1)]}, "texts[0]"),
        ({"texts": ["a"], "priority": 77}, "priority"),
        ({"texts": ["a"], "timeout_ms": -5}, "timeout_ms"),
        ({"texts": ["a"], "release": "minilm-banking77-000000000000"}, "release"),
    ],
)
def test_bad_input_is_the_callers_fault_and_named(
    raw_call: Callable[[str, bytes], bytes], client: Client, request_fields: dict[str, object], field: str
) -> None:
    message = scoring_pb2.ScoreRequest(**request_fields).SerializeToString()
    code, details = refused(lambda: raw_call("Score", message))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details.startswith(field)
    assert client.score("still fine").results


def test_invalid_utf8_is_answered_by_the_handler(raw_call: Callable[[str, bytes], bytes], client: Client) -> None:
    raw = scoring_pb2.ScoreRequest(texts=["cafX"]).SerializeToString().replace(b"cafX", b"caf\xe9")
    code, details = refused(lambda: raw_call("Score", raw))
    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "texts[0]: is not valid UTF-8 at byte 3")
    code, details = refused(lambda: raw_call("Score", b"\xff\xff\xff"))
    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "request: is not a message of this type")
    assert client.score("still fine").results


@pytest.mark.parametrize(
    ("size", "says"), [(5_000_000, "the message has 5000005 bytes"), (20_000_000, "larger than max")]
)
def test_a_message_over_the_limit_is_refused_and_harms_no_other_call(
    raw_call: Callable[[str, bytes], bytes], client: Client, size: int, says: str
) -> None:
    """The service refuses up to four times the limit, the transport beyond."""
    message = scoring_pb2.ScoreRequest(texts=["x" * size]).SerializeToString()
    code, details = refused(lambda: raw_call("Score", message))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert says in details
    assert client.score("still fine").results


def test_a_request_that_would_be_late_is_refused_with_a_hint(service: RunningService) -> None:
    with grpc.insecure_channel(service.address) as channel:
        request = scoring_pb2.ScoreRequest(texts=["too little time for this"], timeout_ms=1)
        with pytest.raises(grpc.RpcError) as error:
            # A distant transport deadline: the refusal is the service's own.
            ScoringServiceStub(channel).Score(request, timeout=10)
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert int(dict(error.value.trailing_metadata())["retry-after-ms"]) >= 1


def test_describe_tells_lanes_release_and_the_replicas_redis_knows(client: Client, release: Release) -> None:
    eventually(lambda: client.describe().replicas)
    described = client.describe()
    assert described.release == release.id
    assert list(described.labels) == list(release.labels)
    lanes = {lane.name: lane for lane in described.lanes}
    assert list(lanes) == ["latency", "dynamic", "throughput", "deferred"]
    latency = lanes["latency"]
    assert (latency.precision, latency.max_batch_size, latency.serving) == ("int8", 1, True)
    assert (latency.p95_target_ms, latency.rate_target, latency.waiting) == (50, 50, 0)
    assert described.operators_policy == {}
    assert described.redis_available
    assert described.replicas[0].address.startswith("127.0.0.1:")


def test_a_damaged_pointer_in_redis_stops_no_call(client: Client, redis_client: "redis.Redis") -> None:
    redis_client.hset(keys.release_pointer(), mapping={"version": "not a number", "active": "nonsense"})
    for _ in range(3):
        redis_client.delete(keys.replicas())
        # Heartbeats go on after the one that read the damaged pointer.
        eventually(lambda: redis_client.smembers(keys.replicas()))
    assert client.score("and calls are answered").results


def test_health_is_serving_and_reflection_is_on_for_loopback(service: RunningService) -> None:
    with grpc.insecure_channel(service.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "scoring.v1.ScoringService"):
            status = health.Check(health_pb2.HealthCheckRequest(service=name)).status
            assert status == health_pb2.HealthCheckResponse.SERVING
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        answer = next(reflection.ServerReflectionInfo(iter([question]), timeout=10))
    assert "scoring.v1.ScoringService" in {listed.name for listed in answer.list_services_response.service}


def test_metrics_keep_the_service_levels_apart(client: Client, service: RunningService) -> None:
    client.score("count me", priority=Priority.REAL_TIME)
    client.score("count me", priority=Priority.BATCH)
    with pytest.raises(grpc.RpcError):
        client.score("")
    text = urllib.request.urlopen(service.metrics).read().decode()  # noqa: S310 - our own loopback address
    for line in (
        'tandem_lane_target_seconds{path="latency"} 0.05',
        'tandem_lane_target_seconds{path="throughput"} 0.5',
        'tandem_lane_target_requests_per_second{path="latency"} 50.0',
        'tandem_lane_target_requests_per_second{path="throughput"} 1000.0',
        'tandem_request_seconds_bucket{le="0.05",model="minilm-banking77",path="latency"}',
        'tandem_request_seconds_bucket{le="0.5",model="minilm-banking77",path="throughput"}',
        'tandem_requests_total{model="",outcome="invalid",path="none"}',
        'tandem_release_info{model="minilm-banking77",release="minilm-banking77-',
    ):
        assert line in text, line

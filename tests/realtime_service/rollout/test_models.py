"""Several models in one deployment: each is served and moved by itself, and none answers for another."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
import pytest
import redis

from protos.inference import open_inference_pb2
from protos.inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from protos.scoring.v1 import scoring_pb2
from realtime_service.client import Answer, CallError, Client, InvalidRequest, Unavailable
from shared_model.releases import pointer
from shared_model.releases.store import Release
from shared_model.types import Priority
from tests.load.workers import Workers
from tests.realtime_service.conftest import eventually
from tests.realtime_service.rollout import tiny_releases
from tests.realtime_service.rollout.stage import PAUSE, WAYS, Stage, staged

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("models"), TANDEM_KEEP_PREVIOUS_SECONDS="0") as stage:
        yield stage


@pytest.fixture
def client(stage: Stage) -> Iterator[Client]:
    with Client(stage.replica.address) as client:
        yield client


def promote(stage: Stage, release: Release) -> None:
    with redis.Redis.from_url(stage.redis.url) as client:
        pointer.promote(stage.store, client, release.id, release.manifest.name)


def seal(stage: Stage, name: str, favourite: int, words: int = 0) -> Release:
    """`words`: unused ones, which make another release of the same answers."""
    more = tuple(f"word-{number}" for number in range(words))
    numbers = tiny_releases.table(favourite=favourite, words=(*tiny_releases.WORDS, *more))
    release = tiny_releases.seal_graph(stage.store, name, tiny_releases.embedding(numbers))
    stage.favourites[release.id] = tiny_releases.LABELS[favourite]
    return release


def active(client: Client, model: str) -> str:
    """The release that is loaded for a model."""
    return {it.name: it.release for it in client.describe().models}.get(model, "")


@pytest.fixture(scope="module")
def named(stage: Stage) -> Release:
    """The release of a model beside the default one, for tests that leave it as it is."""
    release = seal(stage, "named", 2)
    promote(stage, release)
    with Client(stage.replica.address) as client:
        eventually(lambda: active(client, "named") == release.id)
    return release


@dataclass
class ModelCallers(Workers):
    """Callers of each lane and each model, while the context lasts."""

    address: str
    models: tuple[str, ...]
    answers: list[tuple[str, Answer]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def _works(self) -> Iterator[Callable[[], None]]:
        return (partial(self._call, it) for it in itertools.product(self.models, WAYS))

    def _call(self, asked: tuple[str, dict[str, Priority]]) -> None:
        model, way = asked
        with Client(self.address, attempts=1) as client:
            for number in itertools.count():
                if self._over.wait(PAUSE):
                    return
                try:
                    answer = client.score(["where is my card", "card"][: number % 2 + 1], model=model, **way)
                    self.answers.append((model, answer))
                except grpc.RpcError as error:
                    self.failed.append(f"{error.code()}: {error.details()}")


def test_two_models_under_load_while_one_is_promoted_and_rolled_back(stage: Stage, client: Client) -> None:
    """The acceptance: no failed call, 1,000 answers and more of which none is by the wrong model."""
    (first,) = stage.favourites
    side, after = seal(stage, "side", 1), seal(stage, "side", 1, words=3)
    promote(stage, side)
    eventually(lambda: active(client, "side") == side.id)
    with ModelCallers(stage.replica.address, ("", "side")) as callers:
        eventually(lambda: len(callers.answers) > 100)
        promote(stage, after)
        eventually(lambda: active(client, "side") == after.id)
        with redis.Redis.from_url(stage.redis.url) as connection:
            pointer.rollback(stage.store, connection, "side")
        eventually(lambda: active(client, "side") == side.id)
        answered = len(callers.answers)
        eventually(lambda: len(callers.answers) > max(1000, answered + 100))
    assert callers.failed == []
    releases = {"": {first}, "side": {side.id, after.id}}
    assert {model: {it.release for name, it in callers.answers if name == model} for model in releases} == releases
    for model, answer in callers.answers:
        assert answer.model == (model or "first")
        assert {result.labels[0].name for result in answer.results} == {stage.favourites[answer.release]}


def test_a_request_is_answered_by_the_model_that_it_names_or_refused(
    stage: Stage, client: Client, named: Release
) -> None:
    (first, *_) = stage.favourites
    assert {(it.release, it.model) for it in (client.score("card"), client.score("card", model="first"))} == {
        (first, "first")
    }
    assert client.score("card", model="named", release=named.id).model == "named"
    for release, model in ((named.id, ""), (named.id, "first"), (first, "named")):
        with pytest.raises(InvalidRequest, match=r"release: .* is of model \w+, the request is for \w+"):
            client.score("card", release=release, model=model)
    with pytest.raises(InvalidRequest, match="model: 'unknown' is not served; there are: first, "):
        client.score("card", model="unknown")
    assert {answer.release for _, answer in client.stream(["card"] * 5, model="named")} == {named.id}
    # More texts than a call takes: several calls, of one release.
    assert len(client.score(["card"] * 70, model="named").results) == 70
    assert client.describe(model="named").release == named.id
    assert {it.name for it in client.describe().models if it.is_default} == {"first"}


def test_deferred_work_is_done_by_the_model_that_it_names(client: Client, named: Release) -> None:
    client.submit("with", "card", model="named")
    client.submit("without", "card")
    ended = {it.request_id: it.answer for it in client.watch(["with", "without"], seconds=60)}
    assert {name: answer and answer.model for name, answer in ended.items()} == {"with": "named", "without": "first"}
    with pytest.raises(CallError, match="model: 'unknown' is not served"):
        client.submit("wrong", "card", model="unknown")


def test_an_unfit_release_of_one_model_leaves_the_others_alone(stage: Stage, client: Client) -> None:
    fit = seal(stage, "unfit", 4)
    promote(stage, fit)
    eventually(lambda: active(client, "unfit") == fit.id)
    crashing = tiny_releases.embedding(tiny_releases.table(favourite=5), tiny_releases.crashing)
    promote(stage, tiny_releases.seal_graph(stage.store, "unfit", crashing))
    eventually(lambda: scoring_pb2.RELEASE_FAILED in {it.state for it in client.describe().releases})
    assert client.score("card", model="unfit").release == fit.id
    assert client.score("card").model == "first"


def test_a_model_is_asked_at_a_replica_that_serves_it(stage: Stage, named: Release) -> None:
    """Through a router, and through a replica that serves other models alone."""
    (first, *_) = stage.favourites
    router = stage.another_replica("router", TANDEM_LANES="none")
    other = stage.another_replica("other", TANDEM_MODELS="third")
    for service in (router, other):
        with Client(service.address) as asked:
            eventually(lambda asked=asked: answered(asked, "named") == named.id)
            assert {asked.score("card", model="named").release for _ in range(10)} == {named.id}
            assert asked.score("card").release == first
            with pytest.raises(InvalidRequest, match="model: 'unknown' is not served"):
                asked.score("card", model="unknown")
    with Client(router.address) as asked:
        assert asked.describe(model="named").release == named.id
    with Client(other.address) as asked:
        assert active(asked, "named") == ""
    assert [router.stop(), other.stop()] == [0, 0]


def test_the_open_inference_name_selects_the_model(stage: Stage, named: Release) -> None:
    (first, *_) = stage.favourites
    with grpc.insecure_channel(stage.replica.address) as channel:
        stub = GRPCInferenceServiceStub(channel)

        def infer(name: str, version: str = "") -> open_inference_pb2.ModelInferResponse:
            text = open_inference_pb2.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
            text.contents.bytes_contents.append(b"card")
            return stub.ModelInfer(
                open_inference_pb2.ModelInferRequest(model_name=name, model_version=version, inputs=[text]), timeout=30
            )

        assert [infer(*it).model_version for it in (("first",), ("named",), ("named", named.id))] == [
            first, named.id, named.id,
        ]  # fmt: skip
        with pytest.raises(grpc.RpcError) as refused:
            infer("unknown")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def answered(client: Client, model: str) -> str:
    """The release that answers for a model, "" while none does."""
    try:
        return client.score("card", model=model, timeout_ms=20_000).release
    except (Unavailable, InvalidRequest):
        return ""


def test_the_least_recently_used_model_makes_room_for_one_that_is_asked_for(tmp_path: Path) -> None:
    with staged(tmp_path, TANDEM_KEEP_PREVIOUS_SECONDS="0") as stage:
        one, two = seal(stage, "one", 1), seal(stage, "two", 2)
        size = one.size(one.manifest.variants[0])
        for release in (one, two):
            promote(stage, release)
        small = stage.another_replica("small", TANDEM_MODELS_MEGABYTES=str(1.5 * size / 1e6))
        # The other replica has both: without it, calls wait for this one.
        assert stage.replica.stop() == 0
        with Client(small.address) as client:
            eventually(lambda: active(client, "one") == one.id)
            with (
                pytest.raises(Unavailable, match="model: 'two' is being loaded here; retry in 2 s"),
                Client(small.address, attempts=1) as hasty,
            ):
                hasty.score("card", model="two")
            eventually(lambda: active(client, "two") == two.id)
            assert (active(client, "one"), client.score("card", model="two").release) == ("", two.id)
            assert client.score("card").model == "first"
        stage.replica = small

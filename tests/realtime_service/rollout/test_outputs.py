"""All kinds of output through the service: labels, several labels, values, embeddings; of texts and of pairs."""

import grpc
import numpy as np
import pytest
import redis

from protos.scoring.v1.storage_pb2 import PublishedScore
from realtime_service.client import Answer, Client
from shared_model.encoding import InputSpec, Text, collate
from shared_model.output import OutputKind, OutputSpec
from shared_model.published.epochs import Epoch
from shared_model.published.publish import publish
from shared_model.releases.store import Release
from shared_model.types import DeferredState, Device, Precision, Priority, ServingPath
from tests.realtime_service.conftest import eventually
from tests.realtime_service.rollout import tiny_releases
from tests.realtime_service.rollout.stage import Stage, wait_until_active

pytestmark = pytest.mark.heavy

MULTI_LABEL = OutputSpec(OutputKind.MULTI_LABEL, ("urgent", "angry", "thankful"), 3)
REGRESSION = OutputSpec(OutputKind.REGRESSION, ("stars", *(f"aspect {number}" for number in range(6))), 7)
EMBEDDING = OutputSpec(OutputKind.EMBEDDING, (), 12)
TEXTS = ["where is my card", "card"]


def served(stage: Stage, client: Client, name: str, output: OutputSpec, pairs: bool = False) -> Release:
    release = tiny_releases.seal(stage.store, name, output=output, reads=InputSpec(64, pairs=pairs))
    stage.promote(release)
    wait_until_active(client, release)
    return release


def engine_says(release: Release, texts: list[Text]) -> list[np.ndarray]:
    """Scores of each text, computed alone."""
    engine, encoder = release.engine(Precision.INT8, Device.CPU, 1), release.encoder()
    raw = [engine.score(collate([encoder.encode(text)])) for text in texts]
    engine.close()
    return [release.output.scores(row)[0] for row in raw]


def publish_one(stage: Stage, release: Release, text: str, score: PublishedScore) -> None:
    encoder = release.encoder()
    with redis.Redis.from_url(stage.redis.url) as connected:
        publish(
            connected, Epoch(release.id, "bf16", "2026-01-14", 1), {encoder.key(encoder.encode(text)): score}.items()
        )


def answer_of_the_night(client: Client, text: str) -> Answer:
    """The published score. Repeated, because a slow answer of Redis is not waited for."""
    answers: list[Answer] = []
    eventually(lambda: answers.append(client.score(text, top_k=1)) or answers[-1].path == ServingPath.PRECOMPUTED)
    return answers[-1]


def test_several_labels_may_be_true_and_the_best_come_first(stage: Stage, client: Client) -> None:
    release = served(stage, client, "multi", MULTI_LABEL)
    answer = client.score(TEXTS, top_k=2)
    for result, expected in zip(answer.results, engine_says(release, TEXTS), strict=True):
        best = np.argsort(-expected)[:2]
        assert [label.name for label in result.labels] == [MULTI_LABEL.names[index] for index in best]
        assert [label.score for label in result.labels] == pytest.approx(expected[best].tolist(), abs=1e-5)
    assert client.describe().output == "multi_label"


def test_values_come_whole_in_their_order_from_the_device_and_from_last_night(stage: Stage, client: Client) -> None:
    release = served(stage, client, "regression", REGRESSION)
    answer = client.score(TEXTS, top_k=1)
    for result, expected in zip(answer.results, engine_says(release, TEXTS), strict=True):
        assert [label.name for label in result.labels] == list(REGRESSION.names)
        assert [label.score for label in result.labels] == pytest.approx(expected.tolist(), abs=1e-5)
    values = [float(number) for number in range(7)]
    publish_one(stage, release, "scored at night", PublishedScore(labels=range(7), scores=values, tokens=4))
    (result,) = answer_of_the_night(client, "scored at night").results
    assert {label.name: label.score for label in result.labels} == dict(zip(REGRESSION.names, values, strict=True))


def test_an_embedding_is_a_vector_from_the_device_from_last_night_and_deferred(stage: Stage, client: Client) -> None:
    release = served(stage, client, "embedding", EMBEDDING)
    answer = client.score(TEXTS, top_k=1, priority=Priority.REAL_TIME)
    for result, expected in zip(answer.results, engine_says(release, TEXTS), strict=True):
        assert not result.labels
        assert list(result.vector) == pytest.approx(expected.tolist(), abs=1e-5)
    vector = [number / 12 for number in range(12)]
    publish_one(stage, release, "scored at night", PublishedScore(scores=vector, tokens=4))
    (result,) = answer_of_the_night(client, "scored at night").results
    assert list(result.vector) == pytest.approx(vector)
    client.submit("later", "card")
    eventually(lambda: client.result("later").state == DeferredState.PUBLISHED)
    assert len(client.result("later").answer.results[0].vector) == 12
    described = client.describe()
    assert (described.output, list(described.labels), described.pairs) == ("embedding", [], False)


def test_pairs_are_read_as_pairs(stage: Stage, client: Client) -> None:
    release = served(stage, client, "pairs", REGRESSION, pairs=True)
    answer = client.score(TEXTS, text_pairs=["is my card", "where"])
    expected = engine_says(release, [("where is my card", "is my card"), ("card", "where")])
    for result, values in zip(answer.results, expected, strict=True):
        assert [label.score for label in result.labels] == pytest.approx(values.tolist(), abs=1e-5)
    assert answer.results[0].tokens == 9
    assert client.describe().pairs
    client.submit("pair-later", "card", text_pairs="where")
    eventually(lambda: client.result("pair-later").state == DeferredState.PUBLISHED)


def refused(client: Client, fields: dict[str, list[str]]) -> str:
    """Details of the refusal of a request that does not fit the model; Score and Submit give the same."""
    said = set()
    for call in (lambda: client.score(**fields), lambda: client.submit("wrong", **fields)):
        with pytest.raises(grpc.RpcError) as raised:
            call()
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        said.add(raised.value.details())
    (one,) = said
    return str(one)


def test_pairs_for_a_model_of_texts_and_the_reverse_are_the_callers_fault(stage: Stage, client: Client) -> None:
    served(stage, client, "pairs", REGRESSION, pairs=True)
    for fields, says in (
        ({"texts": ["a", "b"]}, "text_pairs: holds 0 texts, must hold one for each of 2 texts"),
        ({"texts": ["a", "b"], "text_pairs": ["c"]}, "text_pairs: holds 1 texts, must hold none or 2"),
        ({"texts": ["a"], "text_pairs": [" "]}, "text_pairs[0]: is empty"),
    ):
        assert refused(client, fields) == says
    served(stage, client, "singles", REGRESSION)
    fields = {"texts": ["a"], "text_pairs": ["b"]}
    assert refused(client, fields) == "text_pairs: is set, but this release reads single texts"

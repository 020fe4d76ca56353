"""Several heads through the service: one forward pass answers all, from the device, from last night and deferred."""

import json

import grpc
import numpy as np
import pytest

from protos.inference import open_inference_pb2 as pb
from protos.inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from protos.scoring.v1.storage_pb2 import PublishedHead, PublishedScore
from realtime_service.client import Client
from shared_model.encoding import collate
from shared_model.heads import HeadSpec
from shared_model.output import OutputKind, OutputSpec
from shared_model.releases.store import Release
from shared_model.types import DeferredState, Device, HeadScore, Label, Precision, Score
from tests.realtime_service.conftest import eventually
from tests.realtime_service.rollout import tiny_releases
from tests.realtime_service.rollout.stage import Stage, wait_until_active
from tests.realtime_service.rollout.test_outputs import answer_of_the_night, publish_one

pytestmark = pytest.mark.heavy

TEXTS = ["where is my card", "card"]
MOOD = HeadSpec("mood", OutputSpec(OutputKind.MULTI_LABEL, ("angry", "glad", "sad"), 3, 0.1, abstain_below=0.6))
STARS = HeadSpec("stars", OutputSpec(OutputKind.REGRESSION, ("stars", "speed"), 2))
VECTOR = HeadSpec("vector", OutputSpec(OutputKind.EMBEDDING, (), 4))


@pytest.fixture
def three(stage: Stage, client: Client) -> Release:
    """A release of four heads, the first of which is named as in a release with one."""
    release = tiny_releases.seal(stage.store, "three", output=tiny_releases.LABELLED, further=(MOOD, STARS, VECTOR))
    stage.promote(release)
    wait_until_active(client, release)
    return release


def expected(release: Release, text: str, k: int) -> Score:
    """The answer of all heads, from raw outputs of the text alone."""
    engine, encoding = release.engine(Precision.INT8, Device.CPU, 1), release.encoder().encode(text)
    raw = engine.score(collate([encoding]))
    engine.close()
    answers, start = [], 0
    for spec in release.heads.specs:
        scores = spec.output.scores(raw[:, start : start + spec.output.width])[0]
        start += spec.output.width
        order = np.argsort(-scores, kind="stable")[:k] if spec.output.ranked else range(len(scores))
        labels = [Label(spec.output.names[at], scores[at]) for at in order] if spec.output.names else []
        unsure = bool(spec.output.abstained(scores[None])[0])
        answers.append(HeadScore(tuple(labels), () if labels else tuple(scores), unsure))
    own, *others = answers
    further = {spec.name: answer for spec, answer in zip(release.heads.further, others, strict=True)}
    return Score(own.labels, encoding.tokens, encoding.truncated, own.vector, further)


def assert_same(found: Score, wanted: Score) -> None:
    pairs = [(found, wanted), *((found.heads[name], head) for name, head in wanted.heads.items())]
    assert found.heads.keys() == wanted.heads.keys()
    for one, other in pairs:
        assert [label.name for label in one.labels] == [label.name for label in other.labels]
        assert one.abstained == other.abstained
        assert [it.score for it in one.labels] == pytest.approx([it.score for it in other.labels], abs=1e-5)
        assert one.vector == pytest.approx(other.vector, abs=1e-5)


def test_one_answer_holds_every_head(three: Release, client: Client) -> None:
    for text, found in zip(TEXTS, client.score(TEXTS, top_k=2).results, strict=True):
        assert_same(found, expected(three, text, k=2))
    described = client.describe().heads
    assert [(it.name, it.output) for it in described] == [
        ("default", "single_label"),
        ("mood", "multi_label"),
        ("stars", "regression"),
        ("vector", "embedding"),
    ]
    assert list(described[1].labels) == ["angry", "glad", "sad"]


def test_last_night_and_deferred_work_answer_with_every_head(stage: Stage, three: Release, client: Client) -> None:
    heads = [
        PublishedHead(labels=[2, 0, 1], scores=[0.75, 0.5, 0.25], abstained=True),
        PublishedHead(labels=[0, 1], scores=[4.5, 2.0]),
        PublishedHead(scores=[0.5] * 4),
    ]
    night = PublishedScore(labels=[3, 1], scores=[0.75, 0.25], tokens=4, heads=heads)
    publish_one(stage, three, "scored at night", night)
    (result,) = answer_of_the_night(client, "scored at night").results
    assert result.labels == (Label("label-3", 0.75),)
    assert result.heads == {
        "mood": HeadScore((Label("sad", 0.75),), abstained=True),
        "stars": HeadScore((Label("stars", 4.5), Label("speed", 2.0))),
        "vector": HeadScore((), (0.5,) * 4),
    }
    client.submit("later", "card", top_k=2)
    eventually(lambda: client.result("later").state == DeferredState.PUBLISHED)
    (deferred,) = client.result("later").answer.results
    assert_same(deferred, expected(three, "card", k=2))


def test_each_further_head_is_an_output_tensor(stage: Stage, three: Release, client: Client) -> None:
    tensor = pb.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[len(TEXTS)])
    tensor.contents.bytes_contents.extend(text.encode() for text in TEXTS)
    with grpc.insecure_channel(stage.replica.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        shapes = {it.name: list(it.shape) for it in stub.ModelMetadata(pb.ModelMetadataRequest(name="three")).outputs}
        assert shapes == {
            "scores": [-1, 8],
            "label": [-1],
            "scores_mood": [-1, 3],
            "abstained_mood": [-1],
            "scores_stars": [-1, 2],
            "scores_vector": [-1, 4],
        }
        response = stub.ModelInfer(pb.ModelInferRequest(model_name="three", inputs=[tensor]), timeout=10)
        told = stub.ModelConfig(pb.ModelConfigRequest(name="three")).config.parameters["heads"].string_value
    assert [head["name"] for head in json.loads(told)] == ["default", "mood", "stars", "vector"]
    raw = dict(zip([it.name for it in response.outputs], response.raw_output_contents, strict=True))
    found = {name: np.frombuffer(raw[name], "<f4").reshape(2, -1) for name in raw if name.startswith("scores")}
    assert {name: rows.shape[1] for name, rows in found.items()} == {
        name: shape[1] for name, shape in shapes.items() if name.startswith("scores")
    }
    unsure = [expected(three, it, k=1).heads["mood"].abstained for it in TEXTS]
    assert list(map(bool, raw["abstained_mood"])) == unsure == [True, False]
    for row, wanted in enumerate(expected(three, it, k=8) for it in TEXTS):
        mood = {label.name: label.score for label in wanted.heads["mood"].labels}
        assert found["scores_mood"][row].tolist() == pytest.approx([mood[name] for name in MOOD.output.names], abs=1e-5)
        assert found["scores_vector"][row].tolist() == pytest.approx(wanted.heads["vector"].vector, abs=1e-5)

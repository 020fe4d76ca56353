"""A release with a temperature that abstains: the device, last night's scores and deferred work say the same."""

from dataclasses import replace

import numpy as np
import pytest

from protos.inference import open_inference_pb2 as pb
from protos.inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from protos.scoring.v1.storage_pb2 import PublishedScore
from realtime_service.cli import printing
from realtime_service.client import Client
from shared_model.output import OutputKind, OutputSpec
from shared_model.types import DeferredState
from tests.realtime_service.conftest import eventually
from tests.realtime_service.rollout import tiny_releases
from tests.realtime_service.rollout.stage import Stage
from tests.realtime_service.rollout.test_outputs import answer_of_the_night, engine_says, publish_one, served

pytestmark = pytest.mark.heavy

TEXTS = ["where is my card", "card"]
MULTI_LABEL = OutputSpec(OutputKind.MULTI_LABEL, ("urgent", "angry", "thankful"), 3)


def between(stage: Stage, output: OutputSpec) -> tuple[OutputSpec, list[bool], list[np.ndarray]]:
    """The output with a threshold between the confidences of the two texts; which of them abstain, and their scores."""
    scores = engine_says(tiny_releases.seal(stage.store, "threshold", output=output), TEXTS)
    sure = [float(output.confidence(row[None])[0]) for row in scores]
    threshold = sum(sure) / 2
    assert abs(sure[0] - sure[1]) > 1e-3
    return replace(output, abstain_below=threshold), [it < threshold for it in sure], scores


@pytest.mark.parametrize(
    "output", [tiny_releases.LABELLED, pytest.param(MULTI_LABEL, marks=pytest.mark.proof)], ids=lambda it: it.kind
)
def test_answers_abstain_below_the_threshold_on_every_path(stage: Stage, client: Client, output: OutputSpec) -> None:
    abstaining, expected, scores = between(stage, replace(output, temperature=6.0))
    release = served(stage, client, f"abstains-{output.width}", abstaining)
    answer = client.score(TEXTS, top_k=1)
    assert [it.abstained for it in answer.results] == expected
    assert [it.labels[0].score for it in answer.results] == pytest.approx([it.max() for it in scores], abs=1e-5)
    assert printing.answer(answer, 0.0).count(", abstained\n") == 1
    client.submit(f"later-{output.width}", TEXTS)
    eventually(lambda: client.result(f"later-{output.width}").state == DeferredState.PUBLISHED)
    assert [it.abstained for it in client.result(f"later-{output.width}").answer.results] == expected
    published = PublishedScore(labels=[1], scores=[0.4], tokens=4, abstained=True)
    publish_one(stage, release, "scored at night", published)
    assert answer_of_the_night(client, "scored at night").results[0].abstained


def test_open_inference_has_an_output_for_it(stage: Stage, client: Client) -> None:
    import grpc

    abstaining, expected, _ = between(stage, replace(tiny_releases.LABELLED, temperature=6.0))
    served(stage, client, "abstains-open", abstaining)
    asked = pb.ModelInferRequest(model_name="abstains-open")
    asked.inputs.add(name="text", datatype="BYTES", shape=[2, 1]).contents.bytes_contents.extend(
        text.encode() for text in TEXTS
    )
    with grpc.insecure_channel(stage.replica.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        described = stub.ModelMetadata(pb.ModelMetadataRequest(name="abstains-open"), timeout=10)
        answer = stub.ModelInfer(asked, timeout=10)
    assert [(it.name, it.datatype) for it in described.outputs][-1] == ("abstained", "BOOL")
    assert [it.name for it in answer.outputs] == ["scores", "label", "abstained"]
    assert list(answer.outputs[-1].shape) == [2]
    assert np.frombuffer(answer.raw_output_contents[-1], bool).tolist() == expected

"""Models with other outputs than labels, and models that are loaded and retired."""

import signal
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.inference import open_inference_pb2 as pb
from protos.inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from shared_model.encoding import InputSpec, Text, collate
from shared_model.output import OutputKind, OutputSpec
from shared_model.releases.store import Release
from shared_model.types import Device, Precision
from tests.realtime_service.conftest import eventually
from tests.realtime_service.rollout import tiny_releases
from tests.realtime_service.rollout.stage import Stage, staged
from tests.realtime_service.transport.open_inference.conftest import refusal

pytestmark = pytest.mark.heavy

REGRESSION = OutputSpec(OutputKind.REGRESSION, ("stars", "length"), 2)
EMBEDDING = OutputSpec(OutputKind.EMBEDDING, (), 12)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage")) as made:
        yield made


@pytest.fixture
def stub(stage: Stage) -> Iterator[GRPCInferenceServiceStub]:
    with grpc.insecure_channel(stage.replica.address) as channel:
        yield GRPCInferenceServiceStub(channel)


def request(name: str, version: str = "", **tensors: list[str]) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=name, model_version=version)
    for tensor, texts in tensors.items():
        added = message.inputs.add(name=tensor, datatype="BYTES", shape=[len(texts), 1])
        added.contents.bytes_contents.extend(text.encode() for text in texts)
    return message


def infer(stub: GRPCInferenceServiceStub, message: pb.ModelInferRequest, caller: str = "") -> pb.ModelInferResponse:
    return stub.ModelInfer(message, timeout=10, metadata=(("x-caller-id", caller),) if caller else ())


def serve(stage: Stage, stub: GRPCInferenceServiceStub, name: str, output: OutputSpec, pairs: bool = False) -> Release:
    release = tiny_releases.seal(stage.store, name, output=output, reads=InputSpec(64, pairs=pairs))
    stage.promote(release)
    eventually(lambda: is_ready(stub, name, release.id))
    return release


def is_ready(stub: GRPCInferenceServiceStub, name: str, version: str = "") -> bool:
    return bool(stub.ModelReady(pb.ModelReadyRequest(name=name, version=version), timeout=10).ready)


def engine_says(release: Release, texts: list[Text]) -> np.ndarray:
    engine, encoder = release.engine(Precision.INT8, Device.CPU, 1), release.encoder()
    scores = release.output.scores(engine.score(collate([encoder.encode(text) for text in texts])))
    engine.close()
    return scores


@pytest.mark.parametrize(
    ("name", "output"), [("values", REGRESSION), pytest.param("vectors", EMBEDDING, marks=pytest.mark.proof)]
)
def test_values_and_embeddings_come_whole_and_have_no_label(
    stage: Stage, stub: GRPCInferenceServiceStub, name: str, output: OutputSpec
) -> None:
    release, texts = serve(stage, stub, name, output), ["where is my card", "card"]
    answer = infer(stub, request(name, text=texts))
    assert [(it.name, list(it.shape)) for it in answer.outputs] == [("scores", [2, output.width])]
    scores = np.frombuffer(answer.raw_output_contents[0], "<f4").reshape(2, -1)
    assert np.allclose(scores, engine_says(release, list(texts)), atol=1e-5)
    described = stub.ModelMetadata(pb.ModelMetadataRequest(name=name), timeout=10)
    assert [(it.name, list(it.shape)) for it in described.outputs] == [("scores", [-1, output.width])]
    labelled = request(name, text=texts)
    labelled.outputs.add(name="label")
    code, details = refusal(lambda: infer(stub, labelled))
    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "label: is not an output; there are scores")


def test_a_model_that_reads_pairs_takes_a_second_tensor(stage: Stage, stub: GRPCInferenceServiceStub) -> None:
    release = serve(stage, stub, "pairs", tiny_releases.LABELLED, pairs=True)
    described = stub.ModelMetadata(pb.ModelMetadataRequest(name="pairs"), timeout=10)
    assert [(it.name, it.datatype) for it in described.inputs] == [("text", "BYTES"), ("text_pair", "BYTES")]
    answer = infer(stub, request("pairs", text_pair=["card", "please"], text=["where is my", "slowly"]))
    scores = np.frombuffer(answer.raw_output_contents[0], "<f4").reshape(2, -1)
    assert np.allclose(scores, engine_says(release, [("where is my", "card"), ("slowly", "please")]), atol=1e-5)
    for wrong, says in (
        (request("pairs", text=["card"]), "text_pair: is missing"),
        (request("pairs", text=["card", "card"], text_pair=["card"]), "text_pair: holds 1 texts, must hold 2"),
    ):
        code, details = refusal(lambda wrong=wrong: infer(stub, wrong))
        assert (code, details[: len(says)]) == (grpc.StatusCode.INVALID_ARGUMENT, says)


def test_a_version_is_a_release_and_a_name_that_of_the_answering_one(
    stage: Stage, stub: GRPCInferenceServiceStub
) -> None:
    old = serve(stage, stub, "intents", tiny_releases.LABELLED)
    new = stage.seal("intents", 3)
    stage.start_canary(new, 0.5)
    eventually(lambda: is_ready(stub, "intents", new.id))
    asked = {release.id: request("intents", release.id, text=["card"]) for release in (old, new)}
    for version, message in asked.items():
        answer = infer(stub, message)
        assert answer.model_version == version
        assert answer.parameters["release"].string_param == version
    # Without a version, a caller always gets the same of canary and active release.
    answered = {
        caller: {infer(stub, request("intents", text=["card"]), caller).model_version for _ in range(3)}
        for caller in map(str, range(20))
    }
    assert all(len(versions) == 1 for versions in answered.values())
    assert set().union(*answered.values()) == {old.id, new.id}
    versions = stub.ModelMetadata(pb.ModelMetadataRequest(name="intents"), timeout=10).versions
    assert list(versions) == [old.id, new.id]
    index = stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True), timeout=10).models
    assert {(it.name, it.version, it.state) for it in index} == {
        ("intents", release.id, "READY") for release in (old, new)
    }


def test_a_canary_of_another_name_does_not_answer(stage: Stage, stub: GRPCInferenceServiceStub) -> None:
    first = serve(stage, stub, "asked", tiny_releases.LABELLED)
    other = stage.seal("other", 2)
    stage.start_canary(other, 0.99)
    eventually(lambda: is_ready(stub, "other"))
    for caller in map(str, range(10)):
        assert infer(stub, request("asked", text=["card"]), caller).model_version == first.id
        assert infer(stub, request("other", text=["card"]), caller).model_version == other.id


def test_a_model_that_is_gone_is_not_found_and_not_ready(stage: Stage, stub: GRPCInferenceServiceStub) -> None:
    gone = serve(stage, stub, "gone", tiny_releases.LABELLED)
    serve(stage, stub, "here", tiny_releases.LABELLED)
    eventually(lambda: not is_ready(stub, "gone", gone.id))
    code, details = refusal(lambda: infer(stub, request("gone", text=["card"])))
    assert (code, details) == (grpc.StatusCode.NOT_FOUND, "model_name: 'gone' is not served here; this is 'here'")
    assert stub.ServerReady(pb.ServerReadyRequest(), timeout=10).ready


def test_a_replica_that_leaves_is_live_and_not_ready(stage: Stage) -> None:
    leaving = stage.another_replica("leaving")
    with grpc.insecure_channel(leaving.address) as channel:
        stub, health = GRPCInferenceServiceStub(channel), health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest(service="inference.GRPCInferenceService")
        assert stub.ServerReady(pb.ServerReadyRequest(), timeout=10).ready
        assert health.Check(asked, timeout=10).status == health_pb2.HealthCheckResponse.SERVING
        leaving.process.send_signal(signal.SIGTERM)
        eventually(lambda: not stub.ServerReady(pb.ServerReadyRequest(), timeout=10).ready)
        assert stub.ServerLive(pb.ServerLiveRequest(), timeout=10).live
    assert leaving.process.wait(timeout=30) == 0


def test_a_release_that_was_found_unfit_is_listed_with_its_reason(stage: Stage, stub: GRPCInferenceServiceStub) -> None:
    broken = tiny_releases.seal_files(stage.store, "broken", b"<nonsense/>", b"")
    stage.promote(broken)

    def states() -> dict[str, tuple[str, str]]:
        models = stub.RepositoryIndex(pb.RepositoryIndexRequest(), timeout=10).models
        return {it.version: (it.state, it.reason) for it in models}

    eventually(lambda: states().get(broken.id, ("", ""))[0] == "UNAVAILABLE")
    assert states()[broken.id][1]
    assert not is_ready(stub, "broken")

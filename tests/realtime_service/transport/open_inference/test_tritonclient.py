"""An unmodified tritonclient against the service, over a real socket."""

import base64
import json
import subprocess
import sys
import tomllib
from functools import reduce
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from protos.inference import open_inference_pb2
from shared_model.encoding import collate
from shared_model.releases.store import Release
from shared_model.types import Device, Precision
from tests.conftest import REPOSITORY
from tests.realtime_service.conftest import RunningService
from tests.shared_model import further_heads

ClientResults = dict[str, Any]
NAME = "minilm-banking77"


@pytest.fixture(scope="module")
def results(service: RunningService, release: Release) -> ClientResults:
    """The results of the client in its process."""
    command = [sys.executable, "-m", "tests.realtime_service.transport.open_inference.triton_calls"]
    done = subprocess.run(
        [*command, service.address, NAME, release.id],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    return dict(json.loads(done.stdout))


def test_health_is_per_server_model_and_version(results: ClientResults) -> None:
    assert results["health"] == {
        "live": True,
        "ready": True,
        "model": True,
        "version": True,
        "another model": False,
        "another version": False,
    }


def test_metadata_and_configuration_describe_the_model(results: ClientResults, release: Release) -> None:
    described = results["descriptions"]
    assert described["server"]["name"] == "tandem"
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert described["server"]["version"] == project["version"]
    width = str(len(release.labels))
    assert described["model"]["versions"] == [release.id]
    assert described["model"]["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": ["-1", "1"]}]
    assert described["model"]["outputs"] == [
        {"name": "scores", "datatype": "FP32", "shape": ["-1", width]},
        {"name": "label", "datatype": "BYTES", "shape": ["-1"]},
        *(
            {"name": name, "datatype": datatype, "shape": ["-1", *map(str, dims)]}
            for name, datatype, dims in further_heads.tensors(release.heads)
        ),
    ]
    assert described["config"]["maxBatchSize"] == 64
    assert [output["dataType"] for output in described["config"]["output"]] == [
        *("TYPE_FP32", "TYPE_STRING"),
        *(f"TYPE_{datatype}" for _, datatype, _ in further_heads.tensors(release.heads)),
    ]
    # The configuration names the label of each score.
    assert json.loads(described["config"]["parameters"]["labels"]["stringValue"]) == list(release.labels)
    assert described["index"]["models"] == [{"name": NAME, "version": release.id, "state": "READY"}]
    assert described["unknown"][0] == "StatusCode.NOT_FOUND"


def test_an_answer_is_every_score_in_the_releases_order_and_the_best_label(
    results: ClientResults, release: Release
) -> None:
    answer = results["answers"]["flat"]
    engine, encoder = release.engine(Precision.INT8, Device.CPU, 1), release.encoder()
    texts = ["my card has not arrived", "I want to close my account"]
    expected = release.heads.scores(engine.score(collate([encoder.encode(text) for text in texts])))
    assert np.allclose(answer["scores"], release.heads.split(expected)[0], atol=1e-3)
    assert answer["labels"] == ["card_arrival", "terminate_account"]
    assert answer["labels"] == [release.labels[int(np.argmax(row))] for row in answer["scores"]]
    further = further_heads.tensors(release.heads)
    shapes = {"scores": [2, len(release.labels)], "label": [2], **{name: [2, *dims] for name, _, dims in further}}
    assert answer["shapes"] == shapes
    numpy_names = {"FP32": "float32", "BOOL": "bool"}
    dtypes = {name: numpy_names[datatype] for name, datatype, _ in further}
    assert answer["dtypes"] == {"scores": "float32", "label": "object", **dtypes}
    assert (answer["id"], answer["model"]) == ("mine", [NAME, release.id])


@pytest.mark.parametrize("way", ["column", "compressed", "of another's parameters", "aio"])
def test_other_forms_of_the_same_request_have_the_same_answer(results: ClientResults, way: str) -> None:
    answer, flat = results["answers"][way], results["answers"]["flat"]
    assert (answer["scores"], answer["labels"]) == (flat["scores"], flat["labels"])


@pytest.mark.parametrize(
    ("way", "names"),
    [("label only", ["label"]), ("scores only", ["scores"]), ("turned", ["label", "scores"])],
)
def test_requested_outputs_are_given_in_their_order_and_no_others(
    results: ClientResults, way: str, names: list[str]
) -> None:
    assert results["answers"][way]["outputs"] == names


def test_an_answer_explains_itself(results: ClientResults, release: Release) -> None:
    parameters = results["answers"]["flat"]["parameters"]
    assert parameters["path"] == "dynamic"
    assert (parameters["release"], parameters["precision"]) == (release.id, "int8")
    assert parameters["batch_size"] in (1, 2)
    assert parameters["compute_us"] > 0
    assert parameters["queue_us"] >= 0
    assert "slack_us" not in parameters


@pytest.mark.parametrize(
    ("way", "path", "budget"),
    [
        ("plain", "dynamic", None),
        ("priority 1", "latency", None),
        ("priority 2", "dynamic", None),
        ("priority 3", "throughput", None),
        ("priority 9", "throughput", None),
        ("timeout 800 ms", "latency", 0.8),
        ("timeout 5 s", "dynamic", 5),
        ("timeout 20 s", "throughput", 20),
        # Many clients always send a deadline: it bounds the answer's time and does not change the path.
        ("deadline 50 s", "dynamic", 50),
        ("timeout 20 s, deadline 10 s", "throughput", 10),
    ],
)
def test_priority_and_timeout_choose_the_path_and_a_deadline_only_tightens(
    results: ClientResults, way: str, path: str, budget: float | None
) -> None:
    parameters = results["ways"][way]
    assert parameters["path"] == path
    assert ("slack_us" in parameters) == (budget is not None)
    if budget is not None:
        # The transport rounds a deadline up, by a hundredth at most.
        assert parameters["queue_us"] + parameters["compute_us"] + parameters["slack_us"] <= 1.01 * budget * 1e6
        assert parameters["slack_us"] > 0


@pytest.mark.parametrize(
    ("asked", "status", "says"),
    [
        ("unknown model", "NOT_FOUND", "model_name: 'unknown' is not served here"),
        ("unknown version", "NOT_FOUND", f"model_name: '{NAME}', version '1', is not served here"),
        ("unknown output", "INVALID_ARGUMENT", "embedding: is not an output; there are scores, label"),
        ("classification", "INVALID_ARGUMENT", "label: has the parameter classification, which is not served"),
        ("unknown input", "INVALID_ARGUMENT", "prompt: is not an input"),
        ("a name without end", "INVALID_ARGUMENT", "ééé"),
        ("no input", "INVALID_ARGUMENT", "text: is missing"),
        ("datatype", "INVALID_ARGUMENT", "text: has datatype 'FP32', must have BYTES"),
        ("shape", "INVALID_ARGUMENT", "text: has shape [1,2], must have [n] or [n,1]"),
        ("more texts than the shape", "INVALID_ARGUMENT", "text: holds more texts than the 1 of its shape"),
        ("too many", "INVALID_ARGUMENT", "text: has shape [65], must hold 1 to 64 texts"),
        ("empty text", "INVALID_ARGUMENT", "text[1]: is empty"),
        ("not UTF-8", "INVALID_ARGUMENT", "text[1]: is not valid UTF-8 at byte 3"),
        ("pair", "INVALID_ARGUMENT", "text_pair: is given"),
        ("no time", "RESOURCE_EXHAUSTED", "the answer would come too late"),
        ("shared memory", "UNIMPLEMENTED", ""),
    ],
)
def test_a_status_names_the_cause_and_the_tensor(results: ClientResults, asked: str, status: str, says: str) -> None:
    code, message = results["failures"][asked]
    assert code == f"StatusCode.{status}"
    assert message.startswith(says)


def test_a_stream_answers_in_order_and_survives_a_bad_request(results: ClientResults) -> None:
    stream = results["stream"]
    assert stream["order"] == ["0", "1", "2", "3", None, "5", "6", "7", "8"]
    best = ["card_arrival", "terminate_account"]
    assert stream["labels"] == [None if number == 4 else [best[number % 2]] for number in range(9)]
    assert stream["errors"] == ["INVALID_ARGUMENT: text[0]: is empty" if number == 4 else "" for number in range(9)]
    assert stream["final"] == [number != 4 for number in range(9)]


def test_statistics_add_up(results: ClientResults) -> None:
    (before,), (after,) = (results["statistics"][moment]["modelStats"] for moment in ("before", "after"))

    def grown(*path: str) -> int:
        first, last = (int(reduce(lambda stats, name: stats.get(name, {}), path, it) or 0) for it in (before, after))
        return last - first

    assert grown("inferenceCount") == 6
    assert 2 <= grown("executionCount") <= 6
    assert grown("inferenceStats", "success", "count") == 2
    assert grown("inferenceStats", "queue", "count") == 2
    assert grown("inferenceStats", "fail", "count") == 1
    assert grown("inferenceStats", "success", "ns") > grown("inferenceStats", "computeInfer", "ns") > 0
    batches = {int(it["batchSize"]): int(it["computeInfer"]["count"]) for it in after["batchStats"]}
    assert sum(batches.values()) == int(after["executionCount"])
    assert sum(rows * count for rows, count in batches.items()) == int(after["inferenceCount"])


def described(file: FileDescriptorProto) -> dict[str, dict[str, tuple[object, ...]]]:
    """The fields of each message in their wire form."""
    found: dict[str, dict[str, tuple[object, ...]]] = {}

    def visit(message: DescriptorProto, prefix: str) -> None:
        name = prefix + message.name
        found[name] = {it.name: (it.number, it.type, it.label, it.type_name) for it in message.field}
        for inner in message.nested_type:
            visit(inner, f"{name}.")

    for message in file.message_type:
        visit(message, "")
    for enum in file.enum_type:
        found[enum.name] = {value.name: (value.number,) for value in enum.value}
    return found


def test_our_messages_have_the_clients_fields(results: ClientResults) -> None:
    theirs: dict[str, dict[str, tuple[object, ...]]] = {}
    for encoded in results["messages"]:
        theirs |= described(FileDescriptorProto.FromString(base64.b64decode(encoded)))
    ours = described(FileDescriptorProto.FromString(open_inference_pb2.DESCRIPTOR.serialized_pb))
    assert len(ours) > 30
    for message, fields in ours.items():
        assert fields.items() <= theirs[message].items(), message

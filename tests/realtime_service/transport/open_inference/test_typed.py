"""Requests with typed contents, as KServe's clients and grpcurl send them, over a real socket."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
import redis
from google.rpc import error_details_pb2, status_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protos.inference import open_inference_pb2 as pb
from protos.inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from protos.scoring.v1.storage_pb2 import PublishedScore
from shared_model.published.epochs import Epoch
from shared_model.published.publish import publish
from shared_model.redis_store import keys
from shared_model.releases.store import Release
from tests.properties import examples
from tests.realtime_service.conftest import eventually
from tests.realtime_service.transport.open_inference.conftest import refusal
from tests.realtime_service.transport.open_inference.test_tensors import nearly_elements, shapes
from tests.shared_model import further_heads

NAME = "minilm-banking77"


def typed(*texts: str, outputs: tuple[str, ...] = (), **fields: object) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=NAME, **fields)
    tensor = request.inputs.add(name="text", datatype="BYTES", shape=[len(texts)])
    tensor.contents.bytes_contents.extend(text.encode() for text in texts)
    for name in outputs:
        request.outputs.add(name=name)
    return request


def test_typed_contents_are_answered_with_raw_outputs(stub: GRPCInferenceServiceStub, release: Release) -> None:
    answer = stub.ModelInfer(typed("my card has not arrived", "I want to close my account", id="7"), timeout=10)
    assert [(it.name, it.datatype, list(it.shape)) for it in answer.outputs] == [
        ("scores", "FP32", [2, len(release.labels)]),
        ("label", "BYTES", [2]),
        *((name, datatype, [2, *dims]) for name, datatype, dims in further_heads.tensors(release.heads)),
    ]
    assert not any(it.HasField("contents") for it in answer.outputs)
    scores = np.frombuffer(answer.raw_output_contents[0], "<f4").reshape(2, -1)
    assert [release.labels[best] for best in scores.argmax(axis=1)] == ["card_arrival", "terminate_account"]
    assert answer.raw_output_contents[1] == b"\x0c\0\0\0card_arrival\x11\0\0\0terminate_account"
    assert (answer.id, answer.model_version) == ("7", release.id)


def test_malformed_bytes_are_the_callers_fault(infer_bytes: Callable[[bytes], bytes]) -> None:
    code, details = refusal(lambda: infer_bytes(b"\xff\xff\xff"))
    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "request: is not a message of this type")
    not_utf8 = typed("a text").SerializeToString().replace(NAME.encode(), b"\xff" * len(NAME))
    code, details = refusal(lambda: infer_bytes(not_utf8))
    assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "model_name: is not valid UTF-8 at byte 0")


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=nearly_elements, shape=st.just([1]) | shapes, noise=st.binary(max_size=4))
def test_no_malformed_request_is_an_internal_error(
    infer_bytes: Callable[[bytes], bytes], raw: bytes, shape: list[int], noise: bytes
) -> None:
    request = pb.ModelInferRequest(model_name=NAME, raw_input_contents=[raw])
    request.inputs.add(name="text", datatype="BYTES", shape=shape)
    try:
        infer_bytes(request.SerializeToString() + noise)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT  # noqa: PT017 - an answer is right, too


def test_a_refusal_tells_when_to_try_again(stub: GRPCInferenceServiceStub) -> None:
    late = typed("no time for this", parameters={"timeout": pb.InferParameter(int64_param=1)})
    with pytest.raises(grpc.RpcError) as refused:
        stub.ModelInfer(late, timeout=10)
    trailers = dict(refused.value.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    hint = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(hint)
    assert hint.retry_delay.ToMilliseconds() == int(trailers["retry-after-ms"]) >= 1


def test_all_scores_come_from_the_device_and_a_label_from_last_night(
    stub: GRPCInferenceServiceStub, release: Release, redis_client: "redis.Redis"
) -> None:
    """Published scores keep five labels: they can name the best, and cannot fill a row of all."""
    text, encoder = "a text that was scored last night", release.encoder()
    best, further = [0.9, 0.05, 0.03, 0.01, 0.01], further_heads.published(release.heads)
    published = PublishedScore(labels=[3, 1, 4, 0, 5], scores=best, tokens=9, heads=further)
    epoch = Epoch(release.id, "bf16", "2026-01-14", 1)
    publish(redis_client, epoch, {encoder.key(encoder.encode(text)): published}.items())

    def path(*outputs: str) -> str:
        answer = stub.ModelInfer(typed(text, outputs=outputs), timeout=10)
        return answer.parameters["path"].string_param

    eventually(lambda: path("label") == "precomputed")
    assert path("scores") == path("label", "scores") == path() == "dynamic"

    def counted_as_a_hit() -> bool:
        before = statistics(stub)
        if path("label") != "precomputed":
            return False
        after = statistics(stub)
        assert after.inference_stats.cache_hit.count == before.inference_stats.cache_hit.count + 1
        assert after.inference_count == before.inference_count
        return True

    # A look-up that a busy machine delays past its few milliseconds is answered by the device.
    eventually(counted_as_a_hit)
    redis_client.delete(keys.epoch_pointer(release.id))
    # Another test may have published an epoch of this name, which the service must reload.
    eventually(lambda: path("label") == "dynamic")


def test_statistics_count_every_request_once_under_load(stub: GRPCInferenceServiceStub) -> None:
    before = statistics(stub)
    sizes = [1 + number % 5 for number in range(60)]
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda size: stub.ModelInfer(typed(*["a text"] * size), timeout=60), sizes))
    after = statistics(stub)
    assert after.inference_stats.success.count - before.inference_stats.success.count == len(sizes)
    assert after.inference_count - before.inference_count == sum(sizes)
    assert sum(it.batch_size * it.compute_infer.count for it in after.batch_stats) == after.inference_count
    assert sum(it.compute_infer.count for it in after.batch_stats) == after.execution_count
    stats = after.inference_stats
    assert stats.success.count == stats.queue.count + stats.cache_hit.count


def statistics(stub: GRPCInferenceServiceStub) -> pb.ModelStatistics:
    (found,) = stub.ModelStatistics(pb.ModelStatisticsRequest(name=NAME), timeout=10).model_stats
    return found

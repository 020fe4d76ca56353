"""Raw calls of the protocol, as grpcurl or a generated client would make them."""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from protos.inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from tests.realtime_service.conftest import RunningService


@pytest.fixture
def stub(service: RunningService) -> Iterator[GRPCInferenceServiceStub]:
    with grpc.insecure_channel(service.address) as channel:
        yield GRPCInferenceServiceStub(channel)


@pytest.fixture
def infer_bytes(service: RunningService) -> Iterator[Callable[[bytes], bytes]]:
    """Call ModelInfer with raw bytes."""
    with grpc.insecure_channel(service.address) as channel:
        method = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        yield lambda data: bytes(method(data, timeout=10))


def refusal(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), error.value.details()

"""Whose quota a call counts against: a verified caller's own, or that of the address, whatever the caller claims."""

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import grpc
import pytest

from protos.inference import open_inference_pb2 as pb
from protos.scoring.v1 import scoring_pb2
from realtime_service.client import Client, Overloaded
from realtime_service.transport.messages import SMALL_BYTES
from realtime_service.transport.open_inference import tensors
from shared_model.releases import pointer
from shared_model.releases.store import Store
from tests.realtime_service.conftest import RunningService, eventually, start_service
from tests.realtime_service.rollout import tiny_releases
from tests.realtime_service.tokens import key_file, token

pytestmark = pytest.mark.heavy

#: Texts a second, so few that no more than the burst of two is admitted while a test runs.
QUOTA = 0.01


@pytest.fixture
def replica(own_environment: None, tmp_path: Path) -> Iterator[RunningService]:
    """With a Redis of its own, because replicas that share one share the quotas."""
    store = Store(tmp_path / "releases")
    pointer.promote(store, None, tiny_releases.seal(store, "tiny").id)
    running = start_service(
        tmp_path,
        Path(store.files.root),
        TANDEM_QUOTA=str(QUOTA),
        TANDEM_MAX_CALLS="8",
        TANDEM_TOKEN_KEYS=str(key_file(tmp_path)),
    )
    yield running
    assert running.stop() == 0


def admitted(replica: RunningService, **caller: str) -> bool:
    with Client(replica.address, attempts=1, **caller) as client:
        try:
            client.score("card")
        except Overloaded:
            return False
        return True


def test_claimed_names_share_the_quota_of_their_address_and_spend_nobody_elses(replica: RunningService) -> None:
    assert [admitted(replica, caller_id=f"name {number}") for number in range(20)] == [True] * 2 + [False] * 18
    assert not admitted(replica, caller_id="alice")
    assert not admitted(replica)
    assert [admitted(replica, token=token()) for _ in range(3)] == [True, True, False]
    assert admitted(replica, token=token(sub="bob"), caller_id="alice")


def test_a_large_request_over_its_quota_is_refused_before_it_is_parsed(replica: RunningService) -> None:
    """It holds a text that is not UTF-8, which parsing would find."""
    request = scoring_pb2.ScoreRequest(texts=["a" * SMALL_BYTES, "cafX"], request_id="a-1")
    infer = pb.ModelInferRequest(model_name="tiny")
    infer.inputs.add(name="text", datatype="BYTES", shape=[2])
    infer.raw_input_contents.append(tensors.pack(request.texts))
    messages = {
        "scoring.v1.ScoringService/Score": request.SerializeToString(),
        "scoring.v1.ScoringService/Submit": scoring_pb2.SubmitRequest(request=request).SerializeToString(),
        "inference.GRPCInferenceService/ModelInfer": infer.SerializeToString(),
    }
    messages = {method: raw.replace(b"cafX", b"caf\xe9") for method, raw in messages.items()}
    with grpc.insecure_channel(replica.address) as channel:

        def codes() -> list[grpc.StatusCode]:
            calls = [channel.unary_unary(f"/{it}").with_call for it in messages]
            found = []
            for call, raw in zip(calls, messages.values(), strict=True):
                with pytest.raises(grpc.RpcError) as ended:
                    call(raw, timeout=20)
                found.append(ended.value.code())
            raw = messages["scoring.v1.ScoringService/Score"]
            stream = channel.stream_stream("/scoring.v1.ScoringService/ScoreStream")(iter([raw]))
            (answer,) = stream
            error = scoring_pb2.ScoreStreamResponse.FromString(answer).error
            return [*found, next(it for it in grpc.StatusCode if it.value[0] == error.code)]

        assert set(codes()) == {grpc.StatusCode.INVALID_ARGUMENT}
        assert [admitted(replica) for _ in range(3)] == [True, True, False]
        assert set(codes()) == {grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_streams_of_one_caller_leave_room_for_another(replica: RunningService) -> None:
    with grpc.insecure_channel(replica.address) as channel:
        open_stream = channel.stream_stream("/scoring.v1.ScoringService/ScoreStream")
        streams = [open_stream(iter(SimpleQueue[bytes]().get, b"")) for _ in range(6)]
        # Half of all calls and streams may be of one caller.
        eventually(lambda: sum(not stream.is_active() for stream in streams) == 2)
        refused = {stream.code() for stream in streams if not stream.is_active()}
        assert refused == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert admitted(replica, token=token())
        for stream in streams:
            stream.cancel()

"""Requests of streams hold their bytes as single calls do, and give them back, however their stream ends."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from protos.inference import open_inference_pb2 as pb
from protos.inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from shared_model.releases import pointer
from shared_model.releases.store import Store
from tests.realtime_service.conftest import RunningService, eventually, start_service
from tests.realtime_service.rollout import tiny_releases
from tests.realtime_service.tokens import bearer, key_file, token

pytestmark = pytest.mark.heavy

#: Of a text that takes an engine a third of a second, and of a request of such texts: 0.4 MB.
TEXT_BYTES, TEXTS, TURNS = 57_000, 7, 10**5
#: All requests may hold 1 MB, those of one caller half of it.
MEGABYTES, SHARE = "1", "0.5"
OWN, ALL = "this caller's requests under way hold", "requests under way hold"


@pytest.fixture(scope="module")
def replica(own_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("budgets")
    store, numbers = Store(folder / "releases"), tiny_releases.table()
    numbers[tiny_releases.WORDS.index("slowly"), 0] += 1000.0
    slow = tiny_releases.embedding(numbers, partial(tiny_releases.slow_where_asked, turns=TURNS))
    pointer.promote(store, None, tiny_releases.seal_graph(store, "slow", slow).id)
    running = start_service(
        folder,
        Path(store.files.root),
        TANDEM_INFLIGHT_MEGABYTES=MEGABYTES,
        TANDEM_INFLIGHT_CALLER_SHARE=SHARE,
        TANDEM_TOKEN_KEYS=str(key_file(folder)),
    )
    yield running
    assert running.stop() == 0


def texts(last: str = "slowly") -> list[str]:
    return ["slowly".ljust(TEXT_BYTES)] * (TEXTS - 1) + [last.ljust(TEXT_BYTES)]


def scored(request_id: str) -> Any:
    return scoring_pb2.ScoreRequest(request_id=request_id, texts=texts())


def inferred(request_id: str) -> Any:
    tensor = pb.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[TEXTS])
    tensor.contents.bytes_contents.extend(it.encode() for it in texts())
    return pb.ModelInferRequest(model_name="slow", id=request_id, inputs=[tensor])


class Stream:
    """One stream of a caller, on a connection of its own, and the answers of one protocol: (id, refusal or "")."""

    def __init__(self, address: str, caller: str, protocol: str = "ScoreStream") -> None:
        self.channel = grpc.insecure_channel(address)
        self.sent: SimpleQueue[Any] = SimpleQueue()
        scores = protocol == "ScoreStream"
        stub: Any = ScoringServiceStub(self.channel) if scores else GRPCInferenceServiceStub(self.channel)
        self.make, self.read = (scored, self._of_score) if scores else (inferred, self._of_infer)
        self.call = getattr(stub, protocol)(iter(self.sent.get, None), timeout=60, metadata=bearer(token(sub=caller)))

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.sent.put(None)
        self.channel.close()

    def send(self, request_id: str) -> None:
        self.sent.put(self.make(request_id))

    def answer(self) -> tuple[str, str]:
        return self.read(next(self.call))

    @staticmethod
    def _of_score(message: Any) -> tuple[str, str]:
        if not message.HasField("error"):
            return message.request_id, ""
        assert message.error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert message.error.retry_after_ms > 0
        return message.request_id, message.error.message

    @staticmethod
    def _of_infer(message: Any) -> tuple[str, str]:
        return message.infer_response.id, message.error_message.removeprefix("RESOURCE_EXHAUSTED: ")


def probe(address: str, caller: str) -> Callable[[], grpc.StatusCode]:
    """How a request as large as the others ends, which is refused for its bytes or else for its last text, at once."""

    invalid = scoring_pb2.ScoreRequest(texts=texts(last=""))

    def ended() -> grpc.StatusCode:
        with grpc.insecure_channel(address) as channel:
            error = ScoringServiceStub(channel).Score.future(invalid, metadata=bearer(token(sub=caller))).exception(20)
            assert isinstance(error, grpc.RpcError)
            return error.code()

    return ended


@pytest.mark.parametrize("protocol", ["ScoreStream", pytest.param("ModelStreamInfer", marks=pytest.mark.proof)])
def test_what_a_caller_may_not_hold_is_refused_and_its_stream_goes_on(replica: RunningService, protocol: str) -> None:
    with Stream(replica.address, "alice", protocol) as stream:
        stream.send("first")
        stream.send("second")
        answers = dict(stream.answer() for _ in range(2))
        assert answers["first"] == ""
        assert answers["second"].startswith(OWN)
        stream.send("third")
        assert stream.answer() == ("third", "")


def test_streams_of_all_callers_share_the_budget_of_the_process(replica: RunningService) -> None:
    with (
        Stream(replica.address, "alice") as alice,
        Stream(replica.address, "bob", "ModelStreamInfer") as bob,
        Stream(replica.address, "carol") as carol,
    ):
        streams = (alice, bob, carol)
        for stream in streams:
            stream.send("only")
        refusals = sorted(refusal for _, refusal in (it.answer() for it in streams))
    assert refusals[:2] == ["", ""]
    assert refusals[2].startswith(ALL)


@pytest.mark.timed
@pytest.mark.parametrize("protocol", ["ScoreStream", "ModelStreamInfer"])
def test_a_stream_that_is_cancelled_gives_its_bytes_back(replica: RunningService, protocol: str) -> None:
    refused = probe(replica.address, "alice")

    def held(stream: Stream) -> bool:
        # Sent anew each time, because the probe itself can hold what the request before it needed.
        stream.send("given up")
        return refused() is grpc.StatusCode.RESOURCE_EXHAUSTED

    with (
        Stream(replica.address, "bob") as bob,
        Stream(replica.address, "alice", protocol) as alice,
        ThreadPoolExecutor(1) as pool,
    ):
        bob.send("before")
        answered = pool.submit(bob.answer)
        eventually(lambda: held(alice))
        alice.call.cancel()
        eventually(lambda: refused() is grpc.StatusCode.INVALID_ARGUMENT)
        # The engine is not done yet with the request before.
        assert not answered.done()
        assert answered.result(60) == ("before", "")

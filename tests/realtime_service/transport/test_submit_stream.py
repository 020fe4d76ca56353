"""The submit stream: requests are stored in chunks and answered one by one, and reading waits for the store."""

import asyncio
import os
import signal
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path

import grpc
import pytest
import redis

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2 import SubmitOutcome, SubmitRequest, SubmitStreamResponse
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from realtime_service.errors import ReplicaUnavailable
from realtime_service.transport.scoring_v1 import submit_stream
from realtime_service.transport.scoring_v1.submit_stream import CHUNK, CHUNK_BYTES, Held, SubmitBatcher
from realtime_service.transport.streaming import OpenStreams
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings
from tests.realtime_service.conftest import eventually
from tests.realtime_service.rollout.stage import Stage, staged

pytestmark = pytest.mark.heavy


class Peer:
    """A client that sends `requests`, and takes answers only while it `reads`. The store answers only while `open`."""

    def __init__(self, requests: Iterable[bytes]) -> None:
        self.reads, self.open = asyncio.Event(), asyncio.Event()
        self.sent = self.held = 0
        self.chunks: list[list[bytes]] = []
        self.answers: list[bytes] = []
        self._requests = list(requests)

    def intake(self) -> SubmitBatcher:
        return SubmitBatcher(self.incoming(), self.hold, self.store, self.write)

    async def incoming(self) -> AsyncIterator[bytes]:
        for request in self._requests:
            self.sent += 1
            yield request

    def hold(self, raw: bytes) -> Held:
        self.held += len(raw)
        return Held(raw, lambda: self.release(len(raw)))

    def release(self, size: int) -> None:
        self.held -= size

    async def store(self, chunk: Sequence[Held]) -> SubmitStreamResponse:
        await self.open.wait()
        self.chunks.append([it.raw for it in chunk])
        return SubmitStreamResponse(outcomes=[SubmitOutcome(request_id=it.raw.decode()) for it in chunk])

    async def write(self, message: SubmitStreamResponse) -> None:
        await self.reads.wait()
        self.answers += [outcome.request_id.encode() for outcome in message.outcomes]


async def settle() -> None:
    """Run the event loop until it is idle."""
    for _ in range(4 * CHUNK):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (what is waited for sets no event)
            await asyncio.sleep(0)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_requests_that_come_during_a_round_trip_share_the_next() -> None:
    peer = Peer(numbers(1000))
    stream = asyncio.create_task(peer.intake().run())
    await settle()
    peer.open.set()
    peer.reads.set()
    await stream
    assert [raw for chunk in peer.chunks for raw in chunk] == peer.answers == numbers(1000)
    assert max(map(len, peer.chunks)) == CHUNK
    assert len(peer.chunks) <= 2 + 1000 // CHUNK + 1


async def test_requests_that_come_while_an_answer_is_taken_share_the_next_round_trip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submit_stream, "MOMENT_SECONDS", 60.0)
    peer = Peer(numbers(10 * CHUNK))

    async def takes(message: SubmitStreamResponse) -> None:
        peer.answers += [outcome.request_id.encode() for outcome in message.outcomes]
        await until(lambda: peer.sent >= min(len(peer._requests), len(peer.answers) + CHUNK))

    peer.write = takes  # type: ignore[method-assign]
    peer.open.set()
    await peer.intake().run()
    assert peer.answers == numbers(10 * CHUNK)
    assert len(peer.chunks) <= 12


@pytest.mark.parametrize("slow", ["open", "reads"])
async def test_a_client_is_not_read_from_before_its_requests_are_stored_and_its_answers_read(slow: str) -> None:
    peer = Peer(numbers(2000))
    getattr(peer, "reads" if slow == "open" else "open").set()
    stream = asyncio.create_task(peer.intake().run())
    await settle()
    assert peer.sent <= 2 * CHUNK + 1
    getattr(peer, slow).set()
    await stream
    assert peer.answers == numbers(2000)


async def test_a_client_that_reads_no_answer_keeps_no_request_here() -> None:
    peer = Peer([b"x" * (CHUNK_BYTES // 4)] * 100)
    stream = asyncio.create_task(peer.intake().run())
    await settle()
    assert peer.held == sum(map(len, peer._requests[: peer.sent]))
    peer.open.set()
    await until(lambda: not peer.held)
    assert peer.sent < 20
    peer.reads.set()
    await stream
    assert len(peer.answers) == 100
    assert peer.held == 0


async def test_requests_that_are_stored_are_not_kept_until_the_next_ones_come() -> None:
    """Their bytes are in no budget any more."""

    class Seen(Held):
        """One that weak references can be made to."""

    peer, seen = Peer(numbers(10)), weakref.WeakSet[Held]()

    def hold(raw: bytes) -> Held:
        made = Seen(raw, lambda: None)
        seen.add(made)
        return made

    peer.hold = hold  # type: ignore[method-assign]
    stream = asyncio.create_task(peer.intake().run())
    await until(lambda: len(seen) == 10)
    peer.open.set()
    await until(lambda: len(peer.chunks) > 0)
    await settle()
    assert not seen
    peer.reads.set()
    await stream


async def test_a_client_that_cannot_be_written_to_ends_the_stream() -> None:
    peer = Peer(numbers(2000))

    async def fails(message: SubmitStreamResponse) -> None:
        raise ConnectionError("the caller has left")

    peer.open.set()
    peer.write = fails  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        await peer.intake().run()
    assert peer.held == 0


async def test_large_requests_do_not_add_up() -> None:
    peer = Peer([b"x" * (CHUNK_BYTES // 4)] * 100)
    stream = asyncio.create_task(peer.intake().run())
    await settle()
    assert peer.sent <= 9
    peer.open.set()
    peer.reads.set()
    await stream
    assert len(peer.answers) == 100
    assert max(map(len, peer.chunks)) <= 5


async def test_a_replica_that_closes_answers_what_it_has_read_and_says_so() -> None:
    streams, peer = OpenStreams(), Peer(numbers(2000))
    peer.reads.set()
    stream = asyncio.create_task(streams.run(peer.intake()))
    await settle()
    streams.close()
    peer.open.set()
    with pytest.raises(ReplicaUnavailable, match="send what has no answer yet to another"):
        await stream
    assert peer.answers == numbers(peer.sent)


async def test_a_client_that_leaves_is_not_read_any_more() -> None:
    peer = Peer(numbers(2000))
    stream = asyncio.create_task(peer.intake().run())
    await settle()
    stream.cancel()
    await asyncio.wait([stream])
    before = peer.sent
    await settle()
    assert peer.sent == before
    assert peer.held == 0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage"), TANDEM_HARVEST="false") as made:
        yield made


@pytest.fixture
def stub(stage: Stage) -> Iterator[ScoringServiceStub]:
    with grpc.insecure_channel(stage.replica.address) as channel:
        stub = ScoringServiceStub(channel)
        eventually(lambda: stub.Describe(scoring_pb2.DescribeRequest(), timeout=10).redis_available)
        yield stub


def wanted(request_id: str, within_ms: int = 0, **fields: object) -> SubmitRequest:
    request = scoring_pb2.ScoreRequest(**{"texts": ["card"], "request_id": request_id, **fields})  # type: ignore[arg-type]
    return SubmitRequest(request=request, deliver_within_ms=within_ms)


def outcomes(stub: ScoringServiceStub, requests: Iterable[SubmitRequest]) -> dict[str, SubmitOutcome]:
    messages = stub.SubmitStream(iter(requests), timeout=30)
    found = [outcome for message in messages for outcome in message.outcomes]
    assert len({it.request_id for it in found}) == len(found)
    return {it.request_id: it for it in found}


def test_each_request_is_answered_by_itself(stage: Stage, stub: ScoringServiceStub) -> None:
    good = [wanted(f"s{number}") for number in range(1000)]
    bad = [wanted("no text", texts=[]), wanted("urgent", timeout_ms=5), wanted("past", within_ms=-1)]
    unknown = wanted("elsewhere", release="gone-0123456789ab")
    found = outcomes(stub, [*good, *bad, unknown])
    assert len(found) == 1004
    assert len({found[f"s{n}"].response.ticket for n in range(1000)}) == 1000
    assert all(found[f"s{n}"].response == accepted(f"s{n}", found[f"s{n}"].response.ticket) for n in range(1000))
    for request_id in ("no text", "urgent", "past", "elsewhere"):
        assert found[request_id].error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert "deliver_within_ms: is -1" in found["past"].error.message
    with redis.Redis.from_url(stage.redis.url) as client:
        assert client.xlen(keys.deferred_stream()) == 1000
    again = outcomes(stub, good[:2])
    assert [it.response.duplicate for it in again.values()] == [True, True]


def accepted(request_id: str, ticket: str) -> scoring_pb2.SubmitResponse:
    return scoring_pb2.SubmitResponse(request_id=request_id, state=scoring_pb2.ACCEPTED, ticket=ticket)


def test_a_request_without_a_result_in_time_expires_and_ends_its_watch(stub: ScoringServiceStub) -> None:
    stub.Submit(wanted("soon", within_ms=300), timeout=10)
    assert list(outcomes(stub, [wanted("sooner", within_ms=100)])) == ["sooner"]
    stub.Submit(wanted("some day", within_ms=3_600_000), timeout=10)
    watched = scoring_pb2.WatchResultsRequest(request_ids=["sooner", "soon"])
    told = [(it.request_id, it.state) for it in stub.WatchResults(watched, timeout=30)]
    # How long this machine took between the two submissions decides which comes first.
    assert sorted(told) == [("soon", scoring_pb2.EXPIRED), ("sooner", scoring_pb2.EXPIRED)]
    assert state_of(stub, "soon") == scoring_pb2.EXPIRED
    assert state_of(stub, "some day") == scoring_pb2.ACCEPTED


def state_of(stub: ScoringServiceStub, request_id: str) -> int:
    return int(stub.GetResult(scoring_pb2.GetResultRequest(request_id=request_id), timeout=10).state)


def test_a_replica_that_lost_its_redis_is_known_again_soon_after_a_flush(
    stage: Stage, stub: ScoringServiceStub
) -> None:
    with redis.Redis.from_url(stage.redis.url) as client:
        client.flushall()
        client.script_flush()
        stub.Submit(wanted("after the flush"), timeout=10)
        assert state_of(stub, "after the flush") == scoring_pb2.ACCEPTED
        eventually(lambda: client.scard(keys.replicas()) == 1, seconds=3)


def test_a_stream_during_an_outage_refuses_each_and_acknowledges_none(stage: Stage, stub: ScoringServiceStub) -> None:
    assert stage.redis.pid
    os.kill(stage.redis.pid, signal.SIGKILL)
    found = outcomes(stub, [wanted(f"gone {number}") for number in range(20)])
    assert {it.error.code for it in found.values()} == {grpc.StatusCode.UNAVAILABLE.value[0]}
    assert len(found) == 20
    with RedisServer(StateSettings(state=Path(stage.folder))):
        since = time.monotonic()
        eventually(lambda: is_stored(lambda: outcomes(stub, [wanted("back")])["back"]), seconds=5)
        assert time.monotonic() - since < 5


def is_stored(call: Callable[[], SubmitOutcome]) -> bool:
    return call().HasField("response")

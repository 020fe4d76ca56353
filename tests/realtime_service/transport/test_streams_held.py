"""Many streams whose answers stay unread: their bytes are bounded for their caller, and given back."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2 import SubmitStreamResponse
from realtime_service.errors import Overloaded
from realtime_service.identity import Identity
from realtime_service.routing.inflight import Inflight
from realtime_service.settings import ServiceSettings
from realtime_service.telemetry.metrics import Metrics
from realtime_service.transport.authentication import Callers, TokenRules
from realtime_service.transport.call_context import ContextReader
from realtime_service.transport.rpc_handlers import Arrival
from realtime_service.transport.scoring_v1.servicer import ScoringServicer
from realtime_service.transport.stream_turns import StreamTurns
from realtime_service.transport.streaming import OpenStreams
from realtime_service.transport.token_keys import TokenKeys
from shared_model.clock import SystemClock
from shared_model.deferred import Accepted, State
from tests.realtime_service.cluster.directory import until

ALICE, BOB = (Arrival(Identity(f"token:{name}", f"token:{name}")) for name in ("alice", "bob"))
#: Of a request, and how many of them one caller, and all callers, may hold.
TEXT, OF_CALLER, OF_ALL = "x" * 10_000, 2, 3
STREAMS = 10


class Deferral:
    """Accepts requests once it is `open`."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    def check_id(self, request_id: str) -> None: ...

    async def accept_many(self, caller: Identity, wanted: Sequence[object]) -> list[Accepted]:
        await self.open.wait()
        return [Accepted(State.ACCEPTED, duplicate=False, ticket="")] * len(wanted)

    async def locate(self, caller: Identity, asked: Sequence[str]) -> list[str]:
        return list(asked)


class Watcher:
    """Nothing ever ends."""

    async def watch(self, request_ids: Sequence[str]) -> AsyncIterator[tuple[str, object]]:
        await asyncio.Event().wait()
        yield "never", None


class Client:
    """The context of a stream whose caller reads answers once it `reads`."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.answers: list[SubmitStreamResponse] = []

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> None: ...

    async def write(self, answer: SubmitStreamResponse) -> None:
        await self.reads.wait()
        self.answers.append(answer)


class Replica:
    def __init__(self) -> None:
        size, settings, clock = len(TEXT) + 100, ServiceSettings(), SystemClock()
        self.inflight, self.watched = (Inflight("bytes", OF_ALL * size, OF_CALLER * size) for _ in range(2))
        callers = Callers(TokenKeys(settings, clock), TokenRules.of(settings), clock)
        calls = Inflight("calls", 100, 100)
        turns = StreamTurns(8, 2)
        self.reader = ContextReader(callers, lambda metadata: False, self.inflight, calls, self.watched, turns)
        self.deferral = Deferral()
        early_shedding = SimpleNamespace(quotas_apply=False)
        dispatcher = SimpleNamespace(check=lambda *_: None, charge=lambda *_: None, early_shedding=early_shedding)
        stores = SimpleNamespace(deferral=self.deferral, watcher=Watcher(), lookup=None)
        parts: Any = (dispatcher, self.reader, stores, OpenStreams(), None, Metrics([]), None)
        self.servicer = ScoringServicer(*parts)

    def submits(self, arrival: Arrival, client: Client) -> "asyncio.Task[None]":
        """A stream with one request, which goes on."""

        async def incoming() -> AsyncIterator[bytes]:
            request = scoring_pb2.ScoreRequest(texts=[TEXT], request_id="a-1")
            yield scoring_pb2.SubmitRequest(request=request).SerializeToString()
            await asyncio.Event().wait()

        return asyncio.create_task(self.servicer.submit_stream(incoming(), cast(Any, client), arrival))

    def watches(self, arrival: Arrival) -> "asyncio.Task[None]":
        raw = scoring_pb2.WatchResultsRequest(request_ids=["a-1"], tickets=[TEXT]).SerializeToString()
        return asyncio.create_task(self.servicer.watch_results(raw, cast(Any, Client()), arrival))


async def ended(streams: Sequence["asyncio.Task[None]"]) -> None:
    for stream in streams:
        stream.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stream


def told(clients: Sequence[Client]) -> list[str]:
    """The refusal of each request, empty for an accepted one."""
    (outcomes,) = zip(*(it.outcomes for client in clients for it in client.answers), strict=True)
    assert {it.request_id for it in outcomes} == {"a-1"}
    codes = {it.error.code for it in outcomes if it.HasField("error")}
    assert codes <= {grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]}
    return sorted(it.error.message for it in outcomes)


async def test_submit_streams_of_a_caller_share_its_bytes_and_an_unread_answer_holds_none() -> None:
    replica, clients = Replica(), [Client() for _ in range(STREAMS)]
    streams = [replica.submits(ALICE, it) for it in clients]
    await until(lambda: replica.inflight.held > (OF_CALLER - 0.5) * len(TEXT))
    others = [Client(), Client()]
    streams += [replica.submits(BOB, it) for it in others]
    await until(lambda: replica.inflight.held > (OF_ALL - 0.5) * len(TEXT))
    replica.deferral.open.set()
    # No answer is read, and all bytes are free again.
    await until(lambda: replica.inflight.held == 0)
    assert not any(it.answers for it in clients)
    for it in (*clients, *others):
        it.reads.set()
    await until(lambda: all(it.answers for it in (*clients, *others)))
    refusals = told(clients)
    assert refusals[:OF_CALLER] == [""] * OF_CALLER
    assert all("this caller's requests under way hold" in it for it in refusals[OF_CALLER:])
    assert sum("requests under way hold" in it for it in told(others)) == len(others) - (OF_ALL - OF_CALLER)
    await ended(streams)


def test_a_refusal_keeps_nothing_of_its_request() -> None:
    replica = Replica()
    raw = scoring_pb2.SubmitRequest(request=scoring_pb2.ScoreRequest(texts=[TEXT])).SerializeToString()
    call = replica.reader.receive("Submit", b"", cast(Any, Client()), ALICE)
    references = sys.getrefcount(raw)
    with replica.inflight.holding(call.payer, OF_CALLER * len(raw)):
        held = replica.servicer._held(raw, call)
    assert isinstance(held.refusal, Overloaded)
    assert sys.getrefcount(raw) == references


async def test_watches_have_a_budget_of_their_own_as_long_as_they_last() -> None:
    replica = Replica()
    watches = [replica.watches(ALICE) for _ in range(OF_CALLER)]
    await until(lambda: replica.watched.held > (OF_CALLER - 0.5) * len(TEXT))
    with pytest.raises(Overloaded, match="this caller's requests under way hold"):
        await replica.watches(ALICE)
    watches.append(replica.watches(BOB))
    await until(lambda: replica.watched.held > (OF_ALL - 0.5) * len(TEXT))
    with pytest.raises(Overloaded, match=r"^requests under way hold"):
        await replica.watches(BOB)
    assert replica.inflight.held == 0
    await ended(watches)
    assert replica.watched.held == 0


async def test_an_answer_names_an_id_only_as_far_as_a_valid_one_is_long() -> None:
    """It would else be as large as its request, and may stay unread."""
    replica, client = Replica(), Client()
    client.reads.set()

    async def incoming() -> AsyncIterator[bytes]:
        yield scoring_pb2.ScoreRequest(texts=["card"], request_id="x" * 100_000).SerializeToString()

    await replica.servicer.score_stream(incoming(), cast(Any, client), ALICE)
    (answer,) = cast(Any, client.answers)
    assert answer.request_id == "x" * 256
    assert answer.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]

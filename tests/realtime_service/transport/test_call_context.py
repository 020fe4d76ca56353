"""What the service reads from a call beside its request."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from realtime_service.cluster.forwarded_context import ForwardedContext
from realtime_service.errors import Unauthenticated
from realtime_service.identity import Identity, pack
from realtime_service.routing.inflight import Inflight
from realtime_service.serving.request import IDENTITY, CallContext
from realtime_service.settings import ServiceSettings
from realtime_service.transport.authentication import Callers, TokenRules
from realtime_service.transport.call_context import ContextReader
from realtime_service.transport.rpc_handlers import Arrival
from realtime_service.transport.stream_turns import StreamTurns
from realtime_service.transport.token_keys import TokenKeys
from shared_model.clock import SystemClock
from shared_model.errors import BadInput
from shared_model.types import ServingPath

ALICE = Identity("token:alice", "token:alice", verified=True, lanes=frozenset({ServingPath.DYNAMIC}))
HOP = ForwardedContext(ServingPath.DYNAMIC, "r-1", "as decided")
PROOF = ("x-proof", "of a replica")


def context(*metadata: tuple[str, str]) -> Any:
    return SimpleNamespace(
        invocation_metadata=lambda: metadata, time_remaining=lambda: 2.0, peer=lambda: "ipv4:10.0.0.7:1"
    )


def reader(required: bool = False) -> ContextReader:
    clock = SystemClock()
    callers = Callers(TokenKeys(ServiceSettings(), clock), TokenRules(required), clock)
    return ContextReader(
        callers,
        lambda metadata: PROOF in metadata,
        Inflight("bytes", 1000, 500),
        Inflight("calls", 10, 5),
        Inflight("bytes", 1000, 500),
        StreamTurns(8, 2),
    )


def received(*metadata: tuple[str, str]) -> CallContext:
    return reader().receive("/any", b"", cast(Any, context(*metadata)), Arrival(ALICE))


def test_a_call_that_grpc_made_before_is_known_as_repeated() -> None:
    assert received(("grpc-previous-rpc-attempts", "1")).repeated
    assert not received(("x-caller-id", "bot-7")).repeated


def test_a_lane_is_named_by_metadata() -> None:
    assert received(("x-tandem-lane", "latency")).hint is ServingPath.LATENCY
    assert received().hint is None
    with pytest.raises(BadInput, match="'fast' is no lane"):
        received(("x-tandem-lane", "fast"))


def test_a_caller_id_that_would_forge_a_line_is_refused() -> None:
    with pytest.raises(BadInput, match=r"x-caller-id: holds the character U\+202E"):
        received(("x-caller-id", "bot\u202e7"))


async def test_the_caller_of_a_forwarded_call_is_the_one_that_the_other_replica_has_identified() -> None:
    who = (IDENTITY, pack(ALICE))
    assert await reader(required=True).arrive(context(PROOF, *HOP.metadata(), who)) == Arrival(ALICE, HOP)


@pytest.mark.parametrize("proof", [(), (("x-proof", "guessed"), *HOP.metadata())])
async def test_a_caller_that_names_itself_like_a_replica_is_not_believed(proof: tuple[tuple[str, str], ...]) -> None:
    said = context(*proof, (IDENTITY, pack(ALICE)))
    assert (await reader().arrive(said)).caller.key == "addr:10.0.0.7"
    with pytest.raises(Unauthenticated, match="needs a bearer token"):
        await reader(required=True).arrive(said)


async def test_a_replica_of_an_earlier_version_is_believed_only_where_no_token_is_required() -> None:
    said = context(PROOF, *HOP.metadata(), ("x-caller-id", "bot-7"))
    assert (await reader().arrive(said)).caller.key == "claimed:bot-7"
    with pytest.raises(Unauthenticated, match="does not tell who calls"):
        await reader(required=True).arrive(said)


@pytest.mark.parametrize("packed", ["", "{}", "[]", '{"key": 1}', "null"])
async def test_an_unreadable_caller_is_refused(packed: str) -> None:
    with pytest.raises(Unauthenticated, match="names no caller"):
        await reader().arrive(context(PROOF, *HOP.metadata(), (IDENTITY, packed)))

"""Credentials between replicas: who has none is a caller, and cannot open a peer stream."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from protos.scoring.v1.link_pb2 import LinkCall, LinkCalls
from realtime_service.cluster import forwarded_context, peer_stream
from realtime_service.cluster.forwarded_context import PATH, REASON, RELEASE, ForwardedContext, Metadata
from realtime_service.cluster.peer_trust import CLUSTER_TOKEN, PROOF, PeerTrust, may_send
from realtime_service.cluster.peers import STREAM_BYTES, Peer
from realtime_service.cluster.write_coalescer import TOGETHER
from realtime_service.errors import ReplicaUnavailable
from realtime_service.routing.inflight import Inflight
from realtime_service.settings import ServiceSettings
from realtime_service.transport.authentication import Callers, TokenRules
from realtime_service.transport.call_context import ContextReader
from realtime_service.transport.listener import bind, make_listener
from realtime_service.transport.peer_stream_server import PeerStreams
from realtime_service.transport.stream_turns import StreamTurns
from realtime_service.transport.streaming import OpenStreams
from realtime_service.transport.token_keys import TokenKeys
from shared_model.clock import SimulatedClock, SystemClock
from shared_model.errors import BadInput
from shared_model.trust.keyring import WITHOUT_KEYS, Keyring
from shared_model.trust.mac import WINDOW_SECONDS
from shared_model.types import ServingPath
from tests.realtime_service.cluster.directory import SCORE
from tests.realtime_service.cluster.stub import FORWARDED as METHODS
from tests.realtime_service.cluster.stub import Stub
from tests.realtime_service.cluster.trusts import CLUSTER_TOKEN as TOKEN
from tests.realtime_service.cluster.trusts import trusting

KEY = Keyring(cluster=b"k" * 32)
ACCEPTING = Keyring(cluster=KEY.cluster, accept_unsigned=True)
STRANGE = Keyring(cluster=b"x" * 32)
HERE, ELSEWHERE = "127.0.0.1:1", "127.0.0.1:2"
FORWARDED = ForwardedContext(ServingPath.DYNAMIC, "r-1", "because").metadata()


def at(clock: SimulatedClock, keys: Keyring = KEY, address: str = HERE) -> PeerTrust:
    return PeerTrust(keys, address, lambda: TOKEN, clock)


def test_a_proof_holds_for_its_replica_and_its_time() -> None:
    clock = SimulatedClock()
    here, sent = at(clock), at(clock).credentials(HERE)
    assert [name for name, _ in sent] == [PROOF]
    assert KEY.cluster.decode() not in str(sent)
    assert here.verifies(sent)
    assert not at(clock, address=ELSEWHERE).verifies(sent)
    assert not at(clock, STRANGE).verifies(sent)
    for ahead in (WINDOW_SECONDS, -WINDOW_SECONDS):
        assert here.verifies(at(SimulatedClock(clock.now + ahead)).credentials(HERE))
    clock.advance(2 * WINDOW_SECONDS)
    assert not here.verifies(sent)


@pytest.mark.parametrize("value", ["", "ä", "0" * 64, b"\xff"])
def test_nonsense_is_no_proof(value: str | bytes) -> None:
    assert not at(SimulatedClock()).verifies([(PROOF, value), (CLUSTER_TOKEN, value)])


@pytest.mark.parametrize(
    ("caller", "replica", "known"),
    [
        (KEY, KEY, True),
        (WITHOUT_KEYS, WITHOUT_KEYS, True),
        # A rolling upgrade: replicas without a key, then some that accept its absence, then all enforce it.
        (WITHOUT_KEYS, ACCEPTING, True),
        (ACCEPTING, WITHOUT_KEYS, True),
        (ACCEPTING, KEY, True),
        (KEY, ACCEPTING, True),
        (WITHOUT_KEYS, KEY, False),
        (KEY, WITHOUT_KEYS, False),
        (STRANGE, KEY, False),
    ],
)
async def test_which_replicas_know_each_other(caller: Keyring, replica: Keyring, known: bool) -> None:
    listener, stub = make_listener(shared=False), Stub()
    address = bind(listener, "127.0.0.1:0")
    trust = trusting(address, replica)
    listener.add_generic_rpc_handlers((PeerStreams([stub], METHODS, OpenStreams(), trust).handlers(),))
    await listener.start()
    assert trust.verifies(trusting(keys=caller).credentials(address)) is known
    peer = Peer(address, trusting(keys=caller))
    try:
        if known:
            assert await peer.call(SCORE, b"hello", 5.0, FORWARDED) == b"olleh"
        else:
            # A write to a stream that the replica has just refused makes grpc.aio lose its status.
            with pytest.raises(grpc.aio.AioRpcError, match=r"Method not found!|Internal error from Core"):
                await peer.call(SCORE, b"hello", 5.0, FORWARDED)
        assert len(stub.asked) == known
    finally:
        await peer.close()
        await listener.stop(None)


@pytest.mark.parametrize("keys", [KEY, ACCEPTING, WITHOUT_KEYS])
async def test_a_caller_cannot_use_the_peer_stream(keys: Keyring) -> None:
    """With a key the stream does not open; without, its first call ends it, unread."""
    listener, stub = make_listener(shared=False), Stub()
    address = bind(listener, "127.0.0.1:0")
    listener.add_generic_rpc_handlers(
        (PeerStreams([stub], METHODS, OpenStreams(), trusting(address, keys)).handlers(),)
    )
    await listener.start()
    flood = LinkCalls(calls=[LinkCall(number=number, method=SCORE, request=b"a") for number in range(TOGETHER)])
    async with grpc.aio.insecure_channel(address) as channel:
        stream: Any = channel.stream_stream(f"/{peer_stream.SERVICE}/{peer_stream.METHOD}")  # type: ignore[call-arg]
        opened = stream(metadata=((CLUSTER_TOKEN, "guessed"), (PROOF, "0" * 64)))
        if keys is not KEY:
            await opened.write(flood.SerializeToString())
        assert await asyncio.wait_for(opened.code(), 10) is grpc.StatusCode.UNIMPLEMENTED
    assert not stub.asked
    await listener.stop(None)


async def test_calls_on_an_authenticated_stream_carry_no_credentials_and_large_ones_their_own() -> None:
    listener, stub = make_listener(shared=False), Stub()
    address = bind(listener, "127.0.0.1:0")
    trust = trusting(address, KEY)
    listener.add_generic_rpc_handlers((PeerStreams([stub], METHODS, OpenStreams(), trust).handlers(), stub))
    await listener.start()
    peer = Peer(address, trusting(keys=KEY))
    for raw in (b"small", bytes(STREAM_BYTES + 1)):
        await peer.call(SCORE, raw, 5.0, FORWARDED)
    small, large = (asked.metadata for asked in stub.asked)
    assert small == dict(FORWARDED)
    assert trust.verifies(large.items())
    await peer.close()
    await listener.stop(None)


async def received(metadata: Metadata) -> object:
    clock = SystemClock()
    callers = Callers(TokenKeys(ServiceSettings(), clock), TokenRules(required=False), clock)
    reader = ContextReader(
        callers,
        trusting(HERE, KEY).verifies,
        Inflight("bytes", 1000, 500),
        Inflight("calls", 10, 5),
        Inflight("bytes", 1000, 500),
        StreamTurns(8, 2),
    )

    class Context:
        def invocation_metadata(self) -> Metadata:
            return tuple(metadata)

        def time_remaining(self) -> float:
            return 1.0

        def peer(self) -> str:
            return "ipv4:127.0.0.1:9"

    return (await reader.arrive(Context())).forwarded  # type: ignore[arg-type]


async def test_a_forwarded_call_without_credentials_is_a_callers() -> None:
    assert await received(FORWARDED) is None
    assert await received((*trusting(keys=KEY).credentials(HERE), *FORWARDED)) == forwarded_context.read(FORWARDED)


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ((), PATH),
        (((PATH, "dynamic"), (RELEASE, "r-1")), REASON),
        (((PATH, "a lane of tomorrow"), (RELEASE, "r-1"), (REASON, "because")), PATH),
        (((PATH, b"dynamic"), (RELEASE, "r-1"), (REASON, "because")), PATH),
    ],
)
async def test_a_malformed_forwarded_call_names_its_field(metadata: Metadata, field: str) -> None:
    with pytest.raises(BadInput, match=field):
        await received((*trusting(keys=KEY).credentials(HERE), *metadata))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/run/a.sock"])
def test_the_token_may_go_to_this_host(address: str) -> None:
    assert may_send(address, insecure=False)
    assert trusting().credentials(address) == ((CLUSTER_TOKEN, TOKEN),)


@pytest.mark.parametrize("address", ["10.0.0.7:1", "[fe80::1]:1", "replica.example:1", "0.0.0.0:1"])
def test_the_token_goes_to_no_other_host_in_clear(address: str) -> None:
    assert not may_send(address, insecure=False)
    assert may_send(address, insecure=True)
    with pytest.raises(ReplicaUnavailable, match=r"python -m shared_model keys.*TANDEM_INSECURE=yes"):
        trusting().credentials(address)
    # A proof is no secret: it serves for half a minute, at that replica.
    assert [name for name, _ in trusting(keys=ACCEPTING).credentials(address)] == [PROOF]

"""The connections to other replicas: opened before the first call, closed after a replica's last call."""

import asyncio

from realtime_service.cluster.peers import Peers
from tests.realtime_service.cluster.directory import SCORE, until
from tests.realtime_service.cluster.stub import Stub, Takes, listening
from tests.realtime_service.cluster.trusts import trusting


async def test_a_replica_is_connected_before_it_is_called() -> None:
    peers = Peers(trusting())
    async with listening(Stub()) as stub:
        await peers.follow({stub.address: False})
        await until(lambda: peers.at(stub.address).reachable)
        assert await peers.at(stub.address).call(SCORE, b"hello", 5.0, ()) == b"olleh"
        await peers.close()


async def test_a_replica_that_leaves_answers_the_calls_under_way() -> None:
    peers = Peers(trusting())
    async with listening(Stub(Takes(0.3))) as stub:
        peer = peers.at(stub.address)
        call = asyncio.create_task(peer.call(SCORE, b"hello", 5.0, ()))
        await until(lambda: peer.busy)
        await peers.follow({})
        assert await call == b"olleh"
        await peers.follow({})
        assert peers.at(stub.address) is not peer
        await peers.close()


async def test_a_replica_that_was_connected_and_is_gone_is_unreachable() -> None:
    peers = Peers(trusting())
    async with listening(Stub()) as stub:
        peer = peers.at(stub.address)
        assert peer.reachable is None
        await until(lambda: peer.reachable)
    await until(lambda: peer.reachable is False)
    await peers.close()

"""Connections between replicas with TLS: who is called how, and renewal under load."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest

from realtime_service.cluster.peers import Peers, PeerTls
from realtime_service.transport.listener import bind, make_listener
from realtime_service.transport.peer_stream_server import PeerStreams
from realtime_service.transport.streaming import OpenStreams
from shared_model.tls import CertificateFiles, TlsSettings
from tests.certified import Certified, certified
from tests.realtime_service.cluster.directory import SCORE, until
from tests.realtime_service.cluster.stub import FORWARDED, Stub, listening
from tests.realtime_service.cluster.trusts import trusting


@pytest.fixture
def own(tmp_path: Path) -> Certified:
    return certified(tmp_path / "own")


def peer_tls(settings: TlsSettings) -> PeerTls:
    return PeerTls(settings, CertificateFiles(settings))


@contextlib.asynccontextmanager
async def replica(settings: TlsSettings) -> AsyncIterator[str]:
    """The address of a replica that reverses what it is sent."""
    listener, stub = make_listener(shared=False), Stub()
    listener.add_generic_rpc_handlers((PeerStreams([stub], FORWARDED, OpenStreams(), trusting()).handlers(), stub))
    address = bind(listener, "127.0.0.1:0", CertificateFiles(settings))
    await listener.start()
    try:
        yield address
    finally:
        await listener.stop(None)


async def connects(settings: TlsSettings, address: str) -> bool:
    peers = Peers(trusting(), peer_tls(settings))
    try:
        await peers.follow({address: True})
        await until(lambda: peers.at(address).reachable is not None)
        return bool(peers.at(address).reachable)
    finally:
        await peers.close()


async def test_replicas_of_one_authority_call_each_other_with_its_certificates(own: Certified, tmp_path: Path) -> None:
    other, mutual = certified(tmp_path / "other"), own.settings(mutual=True)
    async with replica(mutual) as address:
        assert await connects(mutual, address)
        assert not await connects(other.settings(tls_ca=str(own.ca)), address)
        assert not await connects(own.settings(tls_ca=str(other.ca)), address)
        assert not await connects(replace(mutual, tls_name="elsewhere"), address)
        assert await connects(replace(mutual, tls_name="localhost"), address)


@pytest.mark.parametrize(
    ("address", "has_tls", "insecure", "secure"),
    [
        ("10.0.0.7:1", True, False, True),
        ("10.0.0.7:1", False, False, True),
        ("10.0.0.7:1", False, True, False),
        ("127.0.0.1:1", True, True, True),
        ("127.0.0.1:1", False, False, False),
    ],
)
def test_a_heartbeat_cannot_talk_a_replica_out_of_tls(
    address: str, has_tls: bool, insecure: bool, secure: bool, own: Certified
) -> None:
    tls = peer_tls(replace(own.settings(), insecure=insecure))
    assert (tls.of(address, has_tls) is not None) is secure
    # Without TLS of its own, a replica calls each as its heartbeat says.
    plain = peer_tls(TlsSettings(tls_ca=str(own.ca)))
    assert (plain.of(address, has_tls) is not None) is has_tls


async def test_a_replica_that_gets_tls_at_the_same_address_is_called_with_it(own: Certified) -> None:
    peers = Peers(trusting(), peer_tls(own.settings()))
    async with listening(Stub()) as stub:
        await peers.follow({stub.address: False})
        assert await peers.at(stub.address).call(SCORE, b"hello", 5.0, ()) == b"olleh"
        was = peers.at(stub.address)
    await until(lambda: was.reachable is False)
    await peers.follow({stub.address: True})
    assert peers.at(stub.address) is not was
    assert peers.at(stub.address).tls == own.channel(mutual=True)
    await peers.close()


async def test_renewed_certificates_take_effect_without_a_failed_call(own: Certified) -> None:
    """Calls go on all the time; each is answered, and in the end by a connection with the new certificate."""
    mutual, stop, answers = own.settings(mutual=True), asyncio.Event(), list[bytes]()
    async with replica(mutual) as address:
        peers = Peers(trusting(), peer_tls(mutual))

        async def call() -> None:
            while not stop.is_set():
                answers.append(await peers.at(address, True).call(SCORE, b"hello", 5.0, ()))

        callers = [asyncio.create_task(call()) for _ in range(4)]
        await until(lambda: len(answers) > 20)
        first = peers.at(address)
        own.renew()
        async with asyncio.timeout(20):
            while peers.at(address) is first:
                await peers.follow({address: True})
                await asyncio.sleep(0.01)
        count = len(answers)
        await until(lambda: len(answers) > count + 20)
        stop.set()
        await asyncio.gather(*callers)
        assert peers.at(address).tls == own.channel(mutual=True)
        assert set(answers) == {b"olleh"}
        await peers.close()


async def test_a_new_authority_that_the_other_does_not_know_keeps_the_connection(
    own: Certified, tmp_path: Path
) -> None:
    theirs, mine = own.settings(mutual=True), tmp_path / "ca.pem"
    mine.write_bytes(own.ca.read_bytes())
    async with replica(theirs) as address:
        peers = Peers(trusting(), peer_tls(replace(theirs, tls_ca=str(mine))))
        await peers.follow({address: True})
        assert await peers.at(address).call(SCORE, b"hello", 5.0, ()) == b"olleh"
        mine.write_bytes(certified(tmp_path / "other").ca.read_bytes())
        await peers.follow({address: True})
        (successor,) = peers._successors.values()
        await until(lambda: successor.reachable is False)
        await peers.follow({address: True})
        assert await peers.at(address).call(SCORE, b"hello", 5.0, ()) == b"olleh"
        with pytest.raises(grpc.aio.AioRpcError):
            await successor.call(SCORE, b"hello", 5.0, ())
        await peers.close()

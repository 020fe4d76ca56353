"""TLS of both listeners: who is let in, with which version, and which certificate is shown after a renewal."""

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from prometheus_client import CollectorRegistry, Counter, make_wsgi_app

from realtime_service.rpc.credentials import ChannelTls
from realtime_service.transport.listener import bind, make_listener
from realtime_service.transport.metrics_server import serve_metrics
from shared_model.tls import CertificateFiles, TlsSettings
from tests.certified import Certified, certified, scraped, serial, spoken
from tests.realtime_service.cluster.stub import Stub

METHOD = "/scoring.v1.ScoringService/Score"


@pytest.fixture
def own(tmp_path: Path) -> Certified:
    return certified(tmp_path / "own")


@contextlib.asynccontextmanager
async def listening(settings: TlsSettings) -> AsyncIterator[dict[str, str]]:
    """The addresses of a gRPC listener and of a metrics listener."""
    files, registry = CertificateFiles(settings), CollectorRegistry()
    Counter("scraped", "for the page", registry=registry).inc()
    async with contextlib.AsyncExitStack() as stack:
        server = make_listener(shared=False)
        server.add_generic_rpc_handlers((Stub(),))
        address = bind(server, "127.0.0.1:0", files)
        metrics = serve_metrics(stack, "127.0.0.1:0", make_wsgi_app(registry), files)
        await server.start()
        stack.push_async_callback(server.stop, None)
        yield {"gRPC": address, "metrics": metrics}


async def ask(address: str, tls: ChannelTls | None) -> bytes | grpc.StatusCode:
    made: Any = (
        grpc.aio.secure_channel(address, tls.credentials(), options=tls.options)
        if tls
        else grpc.aio.insecure_channel(address)
    )
    async with made as channel:
        try:
            answer: bytes = await channel.unary_unary(METHOD)(b"hello", timeout=10)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return answer


async def test_only_callers_who_trust_the_authority_are_connected(own: Certified, tmp_path: Path) -> None:
    other = certified(tmp_path / "other")
    async with listening(own.settings()) as at:
        assert await ask(at["gRPC"], own.channel()) == b"olleh"
        for stranger in (None, other.channel(), ChannelTls(own.ca.read_bytes(), name="elsewhere")):
            assert await ask(at["gRPC"], stranger) is grpc.StatusCode.UNAVAILABLE
        assert "scraped_total 1.0" in scraped(f"https://{at['metrics']}", own.ca)
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            scraped(f"https://{at['metrics']}", other.ca)
        with pytest.raises(OSError):  # noqa: PT011 - the connection is closed in one of several ways
            scraped(f"http://{at['metrics']}", own.ca)


async def test_mutual_tls_refuses_who_shows_no_certificate_of_the_authority(own: Certified, tmp_path: Path) -> None:
    other = certified(tmp_path / "other")
    theirs = ChannelTls(own.ca.read_bytes(), other.cert.read_bytes(), other.key.read_bytes())
    async with listening(own.settings(mutual=True)) as at:
        assert await ask(at["gRPC"], own.channel(mutual=True)) == b"olleh"
        assert await ask(at["gRPC"], own.channel()) is grpc.StatusCode.UNAVAILABLE
        assert await ask(at["gRPC"], theirs) is grpc.StatusCode.UNAVAILABLE
        assert "scraped_total 1.0" in scraped(f"https://{at['metrics']}", own.ca, own)
        for caller in (None, other):
            with pytest.raises(OSError):  # noqa: PT011 - the connection is closed in one of several ways
                scraped(f"https://{at['metrics']}", own.ca, caller)


async def test_tls_before_1_2_is_refused(own: Certified) -> None:
    """The caller who is refused is one that speaks 1.2 as soon as it may."""
    async with listening(own.settings()) as at:
        assert {name: spoken(it, ssl.TLSVersion.TLSv1_1) for name, it in at.items()} == dict.fromkeys(at, "")
        assert {name: spoken(it, ssl.TLSVersion.TLSv1_2) for name, it in at.items()} == dict.fromkeys(at, "TLSv1.2")
        assert {name: spoken(it, ssl.TLSVersion.TLSv1_3) for name, it in at.items()} == dict.fromkeys(at, "TLSv1.3")


async def test_a_renewed_certificate_is_shown_without_a_restart(own: Certified) -> None:
    async with listening(own.settings()) as at:
        before = {name: serial(address, own.ca) for name, address in at.items()}
        own.renew()
        after = {name: serial(address, own.ca) for name, address in at.items()}
        assert before["gRPC"] == before["metrics"] != after["metrics"] == after["gRPC"]
        own.cert.write_text("torn")
        assert {name: serial(address, own.ca) for name, address in at.items()} == after
        assert await ask(at["gRPC"], own.channel()) == b"olleh"


async def test_a_silent_connection_delays_no_scrape(own: Certified) -> None:
    """Its handshake waits in a thread of its own."""
    async with listening(own.settings()) as at:
        host, _, port = at["metrics"].rpartition(":")
        with socket.create_connection((host, int(port))):
            assert "scraped_total 1.0" in scraped(f"https://{at['metrics']}", own.ca)

"""The metrics server: scrapes are answered while others hold connections, and none is held for ever."""

import contextlib
import socket
import threading
import urllib.request
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry, Counter, make_wsgi_app

from realtime_service.transport import metrics_server
from realtime_service.transport.metrics_server import MAX_CONNECTIONS, serve_metrics
from shared_model.errors import SettingError
from tests.realtime_service.conftest import eventually


@pytest.fixture
async def address() -> AsyncIterator[str]:
    registry = CollectorRegistry()
    Counter("calls", "Calls.", registry=registry).inc()
    async with contextlib.AsyncExitStack() as stack:
        yield serve_metrics(stack, "127.0.0.1:0", make_wsgi_app(registry))


def scrape(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def answers(address: str) -> bool:
    try:
        return "calls_total 1.0" in scrape(address)
    except OSError:
        return False


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def is_ended(connection: socket.socket) -> bool:
    """Whether the server has closed a connection."""
    connection.setblocking(False)
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_metrics_are_served(address: str) -> None:
    assert "calls_total 1.0" in scrape(address)


def test_half_sent_requests_hold_a_bounded_number_of_threads_for_a_bounded_time(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_SECONDS", 2.0)
    before, counts = threading.active_count(), list[int]()
    with contextlib.ExitStack() as held:
        for _ in range(4 * MAX_CONNECTIONS):
            connection = held.enter_context(connected(address))
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /metrics HTTP/1.1\r\n")

        def are_all_accepted() -> bool:
            counts.append(threading.active_count())
            # The last one, of those for which there is no thread.
            return is_ended(connection)

        eventually(are_all_accepted)
        assert max(counts) <= before + MAX_CONNECTIONS
        eventually(lambda: threading.active_count() <= before)
        # Connections that waited to be accepted are taken, and ended, in turn.
        eventually(lambda: answers(address))


def test_a_request_that_trickles_in_is_ended(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_SECONDS", 0.5)
    with connected(address) as connection:

        def is_ended() -> bool:
            try:
                connection.sendall(b"x")
            except OSError:
                return True
            return False

        eventually(is_ended)


async def test_a_taken_port_is_named(address: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        with pytest.raises(SettingError, match=f"TANDEM_METRICS_ADDRESS={address}: cannot listen there"):
            serve_metrics(stack, address, make_wsgi_app(CollectorRegistry()))

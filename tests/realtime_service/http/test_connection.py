"""Bounds of connections, on raw sockets."""

import asyncio
import socket
from typing import Any

import pytest

from protos.scoring.v1 import scoring_pb2 as scoring
from realtime_service.http import connection
from tests.realtime_service.http.served import SCORE, Caller, ask, request, serving, until

LARGE = 40_000_000


async def score(raw: bytes, context: Any) -> scoring.ScoreResponse:
    return scoring.ScoreResponse()


async def large(raw: bytes, context: Any) -> scoring.ScoreResponse:
    return scoring.ScoreResponse(reason="x" * LARGE)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_SECONDS", "REQUEST_SECONDS", "UNREAD_SECONDS"):
        monkeypatch.setattr(connection, name, 0.3)


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"POST /v1/sc",
        b"POST /v1/score HTTP/1.1\r\nhost: x\r\nx-a: ",
        request("/v1/score", b'{"texts"', content_length="100"),
        request("/v1/score", b"", content_length="", transfer_encoding="chunked") + b"5\r\n{",
        # A refused body that never comes.
        request("/v1/score", b"x", content_type="text/plain", content_length="100"),
    ],
    ids=["nothing", "line", "header", "body", "chunk", "refused"],
)
async def test_a_request_that_does_not_come_is_ended(begun: bytes, hasty: None) -> None:
    async with serving({SCORE: score}) as served:
        caller = await Caller.at(served.port)
        await caller.send(begun)
        await caller.ended()
        assert served.bodies.held == 0


async def test_empty_lines_do_not_keep_a_connection(hasty: None) -> None:
    async with serving({SCORE: score}) as served:
        caller = await Caller.at(served.port)
        await caller.send(request("/v1/score", {"texts": ["a"]}))
        await caller.reply()
        await caller.send(b"\r\n")
        assert await caller.ended() == b""


@pytest.mark.parametrize("header", [b"x-a: " + b"a" * 100_000, b"x: y\r\n" * 20_000], ids=["long", "many"])
async def test_a_head_that_is_too_large_is_ended(header: bytes) -> None:
    async with serving({SCORE: score}) as served:
        caller = await Caller.at(served.port)
        await caller.send(b"GET /v2 HTTP/1.1\r\nhost: x\r\n")
        caller.writer.write(header)
        assert await caller.ended() == b""


async def test_an_idle_and_an_old_connection_are_closed() -> None:
    for setting in ({"connection_idle_seconds": 0.2}, {"connection_age_seconds": 1e-9}):
        async with serving({SCORE: score}, **setting) as served:
            caller = await Caller.at(served.port)
            await caller.send(request("/v1/score", {"texts": ["a"]}))
            assert (await caller.reply()).status == 200
            assert await caller.ended() == b""


async def test_connections_are_bounded_and_one_address_has_half() -> None:
    async with serving({SCORE: score}, connections=6) as served:
        callers = [await Caller.at(served.port) for _ in range(3)]
        for caller in callers:
            await caller.send(request("/v1/score", {"texts": ["a"]}))
            assert (await caller.reply()).status == 200
        further = await Caller.at(served.port)
        assert await further.ended() == b""
        callers.pop().close()

        async def answered() -> bool:
            try:
                return (await ask(served.port, "/v1/score", {"texts": ["a"]})).status == 200
            except (OSError, asyncio.IncompleteReadError):
                return False

        async with asyncio.timeout(10):
            while not await answered():
                pass


async def test_an_answer_that_is_not_taken_ends_the_connection(hasty: None) -> None:
    async with serving({SCORE: large}) as served:
        caller = await Caller.at(served.port)
        caller.writer.transport.pause_reading()
        await caller.send(request("/v1/score", {"texts": ["a"]}))
        await until(lambda: served.ended(SCORE, "OK") == 1)
        await until(lambda: not served.listener._state.connections)
        caller.writer.transport.resume_reading()
        assert len(await caller.ended()) < LARGE


async def test_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    async with serving({SCORE: score}) as served:
        caller = await Caller.at(served.port)
        await caller.send(request("/v1/score", {"texts": ["a"]}))
        await caller.reply()
        [held] = served.listener._state.connections
        accepted = held.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        caller.close()


async def test_a_malformed_request_is_400_and_ends_the_connection() -> None:
    async with serving({SCORE: score}) as served:
        for raw in (b"\x16\x03\x01\x02\x00\x01", b"GET /\xff HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
            caller = await Caller.at(served.port)
            await caller.send(raw)
            assert (await caller.ended()).startswith(b"HTTP/1.1 400 Bad Request")

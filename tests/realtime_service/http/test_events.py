"""Server-sent events over a real socket."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from protos.scoring.v1 import scoring_pb2 as scoring
from realtime_service.errors import NotFound, ReplicaUnavailable
from realtime_service.http import events
from realtime_service.transport import rpc_handlers
from tests.realtime_service.http.served import WATCH, Caller, ask, request, serving, until


def watching(method: Callable[[scoring.WatchResultsRequest, Any], Awaitable[None]]) -> rpc_handlers.Method:
    async def watch(raw: bytes, context: Any) -> None:
        await method(scoring.WatchResultsRequest.FromString(raw), context)

    handler: Any = rpc_handlers.server_stream(watch)
    return handler.unary_stream


async def each(asked: scoring.WatchResultsRequest, context: Any) -> None:
    for request_id in asked.request_ids:
        await context.write(scoring.GetResultResponse(request_id=request_id, state=scoring.PUBLISHED))


async def streamed(port: int, raw: bytes) -> tuple[dict[str, str], list[tuple[str, Any]]]:
    """The headers, and (event, data) in order, of an answer to its end."""
    caller = await Caller.at(port)
    await caller.send(raw)
    status, headers = await caller.head()
    assert status == 200
    text = (await asyncio.wait_for(caller.reader.readuntil(b"\r\n0\r\n\r\n"), 10)).decode()
    caller.close()
    lines = [line for line in text.splitlines() if line.startswith(("event: ", "data: "))]
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return headers, [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]


@pytest.mark.parametrize(
    "raw",
    [
        request("/v1/watch?request_id=a&request_id=b%0Ac"),
        request("/v1/watch", {"request_ids": ["a", "b\nc"]}),
    ],
    ids=["GET", "POST"],
)
async def test_each_end_is_an_event_and_so_is_the_last(raw: bytes) -> None:
    async with serving({WATCH: watching(each)}) as served:
        headers, found = await streamed(served.port, raw)
        assert served.ended(WATCH, "OK") == 1
    assert headers["content-type"] == "text/event-stream"
    ends = [{"request_id": it, "state": "PUBLISHED", "computed_by": "", "failure": ""} for it in ("a", "b\nc")]
    assert found == [("result", ends[0]), ("result", ends[1]), ("end", {})]


async def test_an_error_before_the_first_event_has_a_status() -> None:
    async def missing(asked: Any, context: Any) -> None:
        raise NotFound("request_id: 'a' was not submitted")

    async with serving({WATCH: watching(missing)}) as served:
        reply = await ask(served.port, "/v1/watch?request_id=a")
        assert served.ended(WATCH, "NOT_FOUND") == 1
    assert (reply.status, reply.json["code"]) == (404, "NOT_FOUND")


async def test_a_later_error_is_an_event() -> None:
    async def closing(asked: Any, context: Any) -> None:
        await each(asked, context)
        raise ReplicaUnavailable("this replica is closing")

    async with serving({WATCH: watching(closing)}) as served:
        _, found = await streamed(served.port, request("/v1/watch?request_id=a"))
    assert found[1:] == [("failure", {"error": "this replica is closing", "code": "UNAVAILABLE"})]


async def test_a_quiet_stream_begins_has_comments_and_ends_with_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "FIRST_SECONDS", 0.02)
    monkeypatch.setattr(events, "COMMENT_SECONDS", 0.02)

    async def never(asked: Any, context: Any) -> None:
        await asyncio.Event().wait()

    async with serving({WATCH: watching(never)}) as served:
        caller = await Caller.at(served.port)
        await caller.send(request("/v1/watch?request_id=a&timeout_ms=400"))
        await caller.head()
        text = await asyncio.wait_for(caller.reader.readuntil(b"\r\n0\r\n\r\n"), 10)
        caller.close()
    assert text.count(b": waiting\n\n") > 2
    assert b'event: failure\ndata: {"error":"the deadline of the call passed"' in text


async def test_a_caller_that_leaves_ends_the_watch() -> None:
    ended = asyncio.Event()

    async def until_left(asked: Any, context: Any) -> None:
        await each(asked, context)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with serving({WATCH: watching(until_left)}) as served:
        caller = await Caller.at(served.port)
        await caller.send(request("/v1/watch?request_id=a"))
        await caller.head()
        caller.close()
        await asyncio.wait_for(ended.wait(), 10)
        await until(lambda: served.ended(WATCH, "CANCELLED") == 1)


async def test_a_caller_that_does_not_read_is_not_written_to() -> None:
    written = 0

    async def flood(asked: Any, context: Any) -> None:
        nonlocal written
        while True:
            await context.write(scoring.GetResultResponse(failure="x" * 10_000))
            written += 1

    async with serving({WATCH: watching(flood)}) as served:
        caller = await Caller.at(served.port)
        caller.writer.transport.pause_reading()
        await caller.send(request("/v1/watch?request_id=a"))
        await until(lambda: written)
        before = -1
        # Until nothing was written for a while: what the kernel and one buffer hold.
        while written != before:
            before = written
            await asyncio.sleep(0.3)
        assert written < 2_000
        caller.close()
        await until(lambda: served.ended(WATCH, "CANCELLED") == 1)

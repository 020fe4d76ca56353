"""Requests over a real socket: each becomes the gRPC method's message, and each end its status."""

import asyncio
from typing import Any

import grpc
import pytest

from protos.scoring.v1 import scoring_pb2 as scoring
from realtime_service import errors
from realtime_service.errors import STATUS, Overloaded, ReplicaUnavailable
from realtime_service.http import statuses
from realtime_service.transport import messages, rpc_handlers
from shared_model.errors import BadInput, QueueFull, TandemError
from tests.realtime_service.http.served import SCORE, Caller, ask, request, serving, until

TEXT = {"texts": ["card"]}


def scorer(seen: list[Any]) -> rpc_handlers.Method:
    """Echoes the request's first text as a label, and notes the message and the context."""

    async def score(raw: bytes, context: Any) -> scoring.ScoreResponse:
        asked = scoring.ScoreRequest.FromString(raw)
        seen.append((asked, context))
        answer = scoring.ScoreResponse(path=scoring.LATENCY, queue_us=2**40)
        answer.results.add().labels.add(name=asked.texts[0], score=0.1)
        return answer

    return score


def failing(error: Exception) -> rpc_handlers.Method:
    async def fail(raw: bytes, context: Any) -> bytes:
        raise error

    handler: Any = rpc_handlers.unary(fail)
    return handler.unary_unary


class Waiting:
    """A method that answers when it is let, and says whether it was cancelled."""

    def __init__(self) -> None:
        self.running = self.cancelled = False
        self.let = asyncio.Event()

    async def __call__(self, raw: bytes, context: Any) -> scoring.ScoreResponse:
        self.running = True
        try:
            await self.let.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return scoring.ScoreResponse()


async def test_a_request_becomes_the_message_and_the_answer_json() -> None:
    seen: list[Any] = []
    body = {"texts": ["caf\u00e9 \U0001f600"], "priority": "REAL_TIME", "timeout_ms": 80, "top_k": 2}
    async with serving({SCORE: scorer(seen)}) as served:
        headers = {"x_caller_id": "bot", "x_tandem_lane": "latency", "x_timeout_ms": "5000", "x_tandem_caller": "evil"}
        reply = await ask(served.port, "/v1/score", body, **headers)
        assert served.ended(SCORE, "OK") == 1
    [(asked, context)] = seen
    expected = scoring.ScoreRequest(texts=body["texts"], priority=scoring.REAL_TIME, timeout_ms=80, top_k=2)
    assert asked == expected
    # Headers that replicas exchange stay outside.
    assert dict(context.metadata) == {"x-caller-id": "bot", "x-tandem-lane": "latency"}
    assert 4.0 < context.time_remaining() <= 5.0
    assert context.peer().startswith("ipv4:127.0.0.1:")
    assert reply.status == 200
    assert reply.json["results"] == [
        {"labels": [{"name": body["texts"][0], "score": 0.1}], "tokens": 0, "truncated": False, "abstained": False}
    ]
    assert (reply.json["path"], reply.json["queue_us"]) == ("LATENCY", 2**40)


async def test_the_bytes_of_another_replica_are_the_same_answer() -> None:
    async def relayed(raw: bytes, context: Any) -> bytes:
        return scoring.ScoreResponse(release="other-1").SerializeToString()

    async with serving({SCORE: relayed}) as served:
        assert (await ask(served.port, "/v1/score", TEXT)).json["release"] == "other-1"


@pytest.mark.parametrize("kind", STATUS, ids=lambda it: it.__name__)
async def test_each_error_has_its_text_and_status(kind: type[TandemError]) -> None:
    made: dict[type[TandemError], TandemError] = {
        BadInput: BadInput("texts", "is empty"),
        Overloaded: Overloaded("late", 1.2),
        errors.ModelLoading: errors.ModelLoading("m"),
        errors.UnknownMethod: errors.UnknownMethod(),
        QueueFull: QueueFull("full"),
    }
    error = made.get(kind) or kind("said")
    expected = errors.status_of(error)
    async with serving({SCORE: failing(error)}) as served:
        reply = await ask(served.port, "/v1/score", TEXT)
        assert served.ended(SCORE, expected.code.name) == 1
    assert reply.status == statuses.http_status(expected)
    assert reply.json["error"] == expected.message
    assert reply.json["code"] == expected.code.name
    assert ("retry-after" in reply.headers) is (expected.retry_after is not None)


def test_every_status_of_grpc_has_one_of_http() -> None:
    assert statuses.STATUSES.keys() == set(grpc.StatusCode)


async def test_a_refusal_says_when_to_try_again() -> None:
    async with serving({SCORE: failing(Overloaded("late", 1.2))}) as served:
        reply = await ask(served.port, "/v1/score", TEXT)
    assert (reply.status, reply.headers["retry-after"], reply.headers["retry-after-ms"]) == (429, "2", "1200")
    assert reply.json == {"error": "late; retry in 1200 ms", "code": "RESOURCE_EXHAUSTED", "retry_after_ms": 1200}


async def test_an_unexpected_error_is_500_without_its_text() -> None:
    async with serving({SCORE: failing(RuntimeError("the secret"))}) as served:
        reply = await ask(served.port, "/v1/score", TEXT)
    assert (reply.status, b"secret" in reply.body) == (500, False)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "body: is not valid JSON at byte"),
        (b"[]", "body: must be a JSON object"),
        (b'{"texts": ["\\ud800"]}', "body: is not valid JSON"),
        (b'{"texts": ["\xff"]}', "body: is not valid JSON"),
        (b"[" * 100_000, "body: has more than 2400 values"),
        (b'{"texts": [' + b'"",' * 100_000 + b'""]}', "body: has more than 2400 values"),
        ({"texts": "card"}, "texts: must be a list"),
        ({"texts": ["card", 1]}, "texts[1]: must be a string"),
        ({"texts": ["card"], "timeout_ms": True}, "timeout_ms: must be a whole number"),
        ({"texts": ["card"], "timeout_ms": 1.5}, "timeout_ms: must be a whole number"),
        ({"texts": ["card"], "top_k": -1}, "top_k: is -1, which is out of range"),
        ({"texts": ["card"], "priority": "FAST"}, "priority: is no name of one; use REAL_TIME, NORMAL, BATCH"),
        ({"texts": ["card"], "wait": 1}, "wait: is unknown; there are texts, priority"),
    ],
    ids=lambda it: str(it)[:24],
)
async def test_a_wrong_body_is_400_and_names_the_field(body: Any, said: str) -> None:
    async with serving({SCORE: scorer([])}) as served:
        reply = await ask(served.port, "/v1/score", body)
        assert served.ended(SCORE, "INVALID_ARGUMENT") == 1
    assert (reply.status, reply.json["code"]) == (400, "INVALID_ARGUMENT")
    assert reply.json["error"].startswith(said)


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"content_type": ""}, "content-type: must be application/json"),
        ({"content_type": "text/plain"}, "content-type: must be application/json"),
        ({"content_encoding": "gzip"}, "content-encoding: is not taken"),
        ({"x_timeout_ms": "soon"}, "x-timeout-ms: is 'soon', must be a whole number"),
        ({"x_caller_id": "caf\u00e9"}, "x-caller-id: holds a character that is not ASCII"),
    ],
)
async def test_a_wrong_header_is_400_and_is_named(headers: dict[str, str], said: str) -> None:
    async with serving({SCORE: scorer([])}) as served:
        reply = await ask(served.port, "/v1/score", TEXT, **headers)
    assert (reply.status, reply.json["error"][: len(said)]) == (400, said)


@pytest.mark.parametrize("length", [messages.MAX_MESSAGE_BYTES + 1, 10**12])
async def test_a_body_that_says_to_be_too_large_is_413_before_it_comes(length: int) -> None:
    async with serving({SCORE: scorer([])}) as served:
        reply = await ask(served.port, "/v1/score", b"{", content_length=str(length))
    assert reply.status == 413
    assert "at most" in reply.json["error"]


async def test_a_body_in_chunks_is_read_up_to_the_same_size() -> None:
    seen: list[Any] = []
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    async with serving({SCORE: scorer(seen)}) as served:
        # The second body has no end.
        for count, end, status in ((1, b"0\r\n\r\n", 200), (5, b"", 413)):
            caller = await Caller.at(served.port)
            await caller.send(request("/v1/score", b"", content_length="", transfer_encoding="chunked"))
            await caller.send(b'13\r\n{"texts": ["card"]}\r\n' + chunk * count + end)
            assert (await caller.reply()).status == status
            caller.close()
        assert served.bodies.held == 0
    assert len(seen) == 1


async def test_bodies_that_are_read_are_within_a_budget() -> None:
    async with serving({SCORE: scorer([])}, most_bytes=256 * 1024) as served:
        holding = await Caller.at(served.port)
        await holding.send(request("/v1/score", b" " * 100_000, content_length="200000"))
        await until(lambda: served.bodies.held == 128 * 1024)
        reply = await ask(served.port, "/v1/score", TEXT)
        assert (reply.status, "retry-after" in reply.headers) == (429, True)
        holding.close()
        await until(lambda: served.bodies.held == 0)
        assert (await ask(served.port, "/v1/score", TEXT)).status == 200


async def test_the_deadline_of_the_call_ends_it() -> None:
    method = Waiting()
    async with serving({SCORE: method}) as served:
        reply = await ask(served.port, "/v1/score", TEXT, x_timeout_ms="50")
        assert served.ended(SCORE, "DEADLINE_EXCEEDED") == 1
    assert (reply.status, reply.json["error"]) == (504, "the deadline of the call passed")
    assert method.cancelled


async def test_a_caller_that_leaves_cancels_its_work() -> None:
    method = Waiting()
    async with serving({SCORE: method}) as served:
        caller = await Caller.at(served.port)
        await caller.send(request("/v1/score", TEXT))
        await until(lambda: method.running)
        caller.close()
        await until(lambda: method.cancelled and served.ended(SCORE, "CANCELLED") == 1)


async def test_a_stop_lets_requests_end_and_takes_no_more() -> None:
    method = Waiting()
    async with serving({SCORE: method}) as served:
        caller = await Caller.at(served.port)
        await caller.send(request("/v1/score", TEXT))
        await until(lambda: method.running)
        stopping = asyncio.create_task(served.listener.stop(10.0))
        await asyncio.sleep(0)
        with pytest.raises(OSError):  # noqa: PT011 - of several kinds
            await Caller.at(served.port)
        method.let.set()
        reply = await caller.reply()
        await stopping
    assert (reply.status, reply.headers["connection"]) == (200, "close")


async def test_requests_of_one_connection_are_answered_in_their_order() -> None:
    async with serving({SCORE: scorer([])}) as served:
        caller = await Caller.at(served.port)
        await caller.send(b"".join(request("/v1/score", {"texts": [f"t{number}"]}) for number in range(20)))
        found = [(await caller.reply()).json["results"][0]["labels"][0]["name"] for _ in range(20)]
        caller.close()
    assert found == [f"t{number}" for number in range(20)]


@pytest.mark.parametrize(
    ("verb", "path", "status"), [("GET", "/v1/score", 405), ("GET", "/nowhere", 404), ("POST", "/v2", 405)]
)
async def test_another_path_or_verb_is_refused_in_json_and_counted(verb: str, path: str, status: int) -> None:
    async with serving({}) as served:
        reply = await ask(served.port, path, None, verb)
        assert served.ended("unknown", "UNIMPLEMENTED") == 1
    assert (reply.status, reply.json["code"]) == (status, "UNIMPLEMENTED")


async def test_a_replica_that_closes_is_503() -> None:
    async with serving({SCORE: failing(ReplicaUnavailable("closing"))}) as served:
        assert (await ask(served.port, "/v1/score", TEXT)).status == 503

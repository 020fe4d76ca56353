"""Both clients against a server that ends calls as a script says: what is sent, how often, and what comes back."""

import asyncio
import copy
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from protos.scoring.v1 import scoring_pb2
from realtime_service.client import AsyncClient, CallError, Client, DeadlineExceeded, Overloaded, Unavailable
from realtime_service.client.calls import LASTED_SECONDS, Watched
from shared_model.clock import SimulatedClock
from shared_model.types import DeferredState, Label, Priority, ServingPath
from tests.realtime_service.client.faces import FACES, Face, Loop, Threads
from tests.realtime_service.client.scripted import Ends, Script, Silence, scripted
from tests.realtime_service.conftest import eventually

ANSWER = scoring_pb2.ScoreResponse(
    results=[scoring_pb2.Result(labels=[scoring_pb2.Label(name="greeting", score=0.75)], tokens=4)],
    path=scoring_pb2.LATENCY,
    release="r-1",
    precision="int8",
    batch_size=1,
    queue_us=12,
    compute_us=800,
    slack_us=-5,
    reason="because",
)
LOST = Ends(grpc.StatusCode.UNAVAILABLE)
both = pytest.mark.parametrize("face", FACES, ids=["threads", "loop"])


def ended(request_id: str, state: int = scoring_pb2.PUBLISHED) -> scoring_pb2.GetResultResponse:
    response = ANSWER if state == scoring_pb2.PUBLISHED else None
    return scoring_pb2.GetResultResponse(request_id=request_id, state=state, response=response, failure="")


@both
def test_an_answer_is_read_and_keeps_its_message(face: Face) -> None:
    with scripted(ANSWER) as script, face(script.address, caller_id="bot-7") as client:
        answer = client.score("hello", timeout_ms=20_000, priority=Priority.REAL_TIME, top_k=2, release="r-1")
    assert (answer.label, answer.score) == ("greeting", 0.75)
    assert answer.results[0].labels == (Label("greeting", 0.75),)
    assert (answer.path, answer.release, answer.reason) == (ServingPath.LATENCY, "r-1", "because")
    assert (answer.queue_us, answer.compute_us, answer.slack_us, answer.ticket) == (12, 800, -5, "")
    assert answer.message == ANSWER
    ((_, request, metadata),) = script.asked
    assert (list(request.texts), request.timeout_ms, request.priority) == (["hello"], 20_000, scoring_pb2.REAL_TIME)
    assert (request.top_k, request.release, request.request_id) == (2, "r-1", "")
    assert metadata["x-caller-id"] == "bot-7"


@both
@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
def test_what_was_lost_is_made_again_once(face: Face, code: grpc.StatusCode) -> None:
    with scripted(Ends(code), ANSWER) as script, face(script.address) as client:
        assert client.score("hello").label == "greeting"
    # By which the service knows it.
    assert [metadata.get("grpc-previous-rpc-attempts") for _, _, metadata in script.asked] == [None, "1"]
    with scripted(Ends(code)) as script, face(script.address) as client, pytest.raises(Unavailable):
        client.score("hello")
    assert len(script.asked) == 2


@both
def test_the_largest_request_is_made_again_too(face: Face) -> None:
    texts = ["x" * 60_000] * 64
    with scripted(LOST, ANSWER) as script, face(script.address) as client:
        assert client.score(texts).label == "greeting"
    assert [len(message.texts) for _, message, _ in script.asked] == [64, 64]


@both
def test_with_one_attempt_nothing_is_made_again(face: Face) -> None:
    with scripted(LOST, [LOST]) as script, face(script.address, attempts=1) as client:
        with pytest.raises(Unavailable):
            client.score("hello")
        with pytest.raises(Unavailable):
            client.listed("watch", ["a"])
    assert len(script.asked) == 2
    with pytest.raises(ValueError, match="attempts=3: expected 1 or 2"):
        face(script.address, attempts=3)


@both
def test_a_refusal_that_no_time_helps_is_not_made_again(face: Face) -> None:
    refused = Ends(grpc.StatusCode.RESOURCE_EXHAUSTED, "the message is too large")
    with scripted(refused) as script, face(script.address) as client, pytest.raises(Overloaded) as error:
        client.score("hello")
    assert (len(script.asked), error.value.retry_after) == (1, None)


@both
def test_a_refusal_is_made_again_once_when_its_hint_says(face: Face) -> None:
    refused = Ends(grpc.StatusCode.RESOURCE_EXHAUSTED, "the lane is full", milliseconds="150")
    with scripted(refused, ANSWER) as script, face(script.address) as client:
        started = time.monotonic()
        assert client.score("hello").label == "greeting"
        assert time.monotonic() - started >= 0.15
    with scripted(refused) as script, face(script.address) as client:
        with pytest.raises(Overloaded, match="the lane is full") as error:
            client.score("hello")
        assert error.value.retry_after == 0.15
        assert len(script.asked) == 2


@both
def test_a_refusal_is_not_waited_for_when_there_is_no_time_for_another_attempt(face: Face) -> None:
    refused = Ends(grpc.StatusCode.RESOURCE_EXHAUSTED, milliseconds="9000")
    with scripted(refused) as script, face(script.address) as client:
        started = time.monotonic()
        with pytest.raises(Overloaded):
            client.score("hello", timeout_ms=8_000)
        assert time.monotonic() - started < 4
    assert len(script.asked) == 1


@both
@pytest.mark.parametrize(
    "code", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED]
)
def test_what_no_repetition_helps_is_sent_once(face: Face, code: grpc.StatusCode) -> None:
    with scripted(Ends(code)) as script, face(script.address) as client, pytest.raises(CallError) as error:
        client.score("hello")
    assert (error.value.code(), error.value.details(), len(script.asked)) == (code, "as the script says", 1)


@both
def test_submit_is_made_again_with_its_request_id(face: Face) -> None:
    accepted = scoring_pb2.SubmitResponse(request_id="job", state=scoring_pb2.ACCEPTED, duplicate=True)
    with scripted(LOST, accepted) as script, face(script.address) as client:
        submitted = client.submit("job", ["a", "b"])
    assert (submitted.request_id, submitted.state, submitted.duplicate) == ("job", DeferredState.ACCEPTED, True)
    assert [message.request.request_id for _, message, _ in script.asked] == ["job", "job"]


def stored(request_id: str) -> scoring_pb2.SubmitOutcome:
    accepted = scoring_pb2.SubmitResponse(request_id=request_id, state=scoring_pb2.ACCEPTED)
    return scoring_pb2.SubmitOutcome(request_id=request_id, response=accepted)


@both
def test_a_stream_of_submissions_tells_what_became_of_each(face: Face) -> None:
    full = scoring_pb2.StreamError(code=8, message="the stream is full", retry_after_ms=5000)
    steps = [
        scoring_pb2.SubmitStreamResponse(outcomes=[stored("a"), stored("b")]),
        scoring_pb2.SubmitStreamResponse(outcomes=[scoring_pb2.SubmitOutcome(request_id="c", error=full)]),
    ]
    work = [("a", "one"), ("b", ["two", "three"]), ("c", "four")]
    with scripted(steps) as script, face(script.address) as client:
        (a, b, c) = client.listed("submit_stream", work, top_k=2, deliver_within_ms=60_000)
    assert [(name, it.state, it.duplicate) for name, it in (a, b)] == [
        ("a", DeferredState.ACCEPTED, False),
        ("b", DeferredState.ACCEPTED, False),
    ]
    assert c[0] == "c"
    assert isinstance(c[1], Overloaded)
    assert (c[1].details(), c[1].retry_after) == ("the stream is full", 5.0)
    ((_, sent, _),) = script.asked
    assert [(it.request.request_id, list(it.request.texts)) for it in sent] == [
        ("a", ["one"]),
        ("b", ["two", "three"]),
        ("c", ["four"]),
    ]
    assert {(it.request.top_k, it.deliver_within_ms) for it in sent} == {(2, 60_000)}


@both
def test_a_stream_of_submissions_that_breaks_says_so_after_what_it_told(face: Face) -> None:
    steps = [scoring_pb2.SubmitStreamResponse(outcomes=[stored("a")]), LOST]
    with scripted(steps) as script, face(script.address) as client:
        assert client.first("submit_stream", [("a", "one"), ("b", "two")])[0] == "a"
        with pytest.raises(Unavailable):
            client.listed("submit_stream", [("a", "one"), ("b", "two")])
    assert len(script.asked) == 2


@both
def test_an_error_of_the_caller_s_own_iterator_is_raised_after_the_answers(face: Face) -> None:
    def work() -> Iterator[tuple[str, str]]:
        yield "a", "one"
        raise LookupError("the caller's own")

    told = [scoring_pb2.SubmitStreamResponse(outcomes=[stored("a")])]
    with scripted(told) as script, face(script.address) as client:
        assert client.first("submit_stream", work())[0] == "a"
        with pytest.raises(LookupError, match="the caller's own"):
            client.listed("submit_stream", work())
    assert [[it.request.request_id for it in sent] for _, sent, _ in script.asked] == [["a"], ["a"]]


async def test_work_may_come_from_a_generator_of_the_loop() -> None:
    async def work() -> AsyncIterator[tuple[str, str]]:
        for name in "ab":
            await asyncio.sleep(0)
            yield name, "text"

    async def broken() -> AsyncIterator[tuple[str, str]]:
        yield "a", "text"
        raise LookupError("the caller's own")

    answer = scoring_pb2.SubmitStreamResponse(outcomes=[stored("a"), stored("b")])
    with scripted([answer]) as script:
        async with AsyncClient(script.address) as client:
            assert [name async for name, _ in client.submit_stream(work())] == ["a", "b"]
            with pytest.raises(LookupError, match="the caller's own"):
                [name async for name, _ in client.submit_stream(broken())]


@both
def test_work_that_expired_or_is_scored_is_read(face: Face) -> None:
    steps = [ended("a", scoring_pb2.EXPIRED), ended("b", scoring_pb2.SCORED)]
    with scripted(steps) as script, face(script.address) as client:
        expired, scored = client.listed("watch", ["a", "b"])
    assert (expired.state, expired.ended, expired.answer) == (DeferredState.EXPIRED, True, None)
    assert (scored.state, scored.ended) == (DeferredState.SCORED, False)


@both
def test_submit_says_until_when_it_is_of_use(face: Face) -> None:
    accepted = scoring_pb2.SubmitResponse(request_id="job", state=scoring_pb2.ACCEPTED)
    with scripted(accepted) as script, face(script.address) as client:
        client.submit("job", "a", deliver_within_ms=1500)
        client.submit("job", "a")
    assert [message.deliver_within_ms for _, message, _ in script.asked] == [1500, 0]


@both
def test_a_score_that_may_be_deferred_is_named_so_that_it_is_deferred_once(face: Face) -> None:
    ticket = scoring_pb2.ScoreResponse(path=scoring_pb2.DEFERRED, ticket=scoring_pb2.Ticket(request_id="t-1"))
    with scripted(LOST, ticket) as script, face(script.address) as client:
        answer = client.score("hello", allow_deferred=True)
        client.score("hello", allow_deferred=True, request_id="mine")
    assert (answer.path, answer.ticket, answer.results) == (ServingPath.DEFERRED, "t-1", ())
    with pytest.raises(LookupError, match=r"ask for result\('t-1'\)"):
        _ = answer.label
    first, again, named = (message.request_id for _, message, _ in script.asked)
    assert first == again != ""
    assert named == "mine"


@both
def test_a_watch_goes_on_with_what_is_open(face: Face) -> None:
    steps = [ended("a"), LOST], [ended("b"), ended("c", scoring_pb2.FAILED)]
    with scripted(*steps) as script, face(script.address) as client:
        ends = client.listed("watch", ["a", "b", "c"])
    assert [(end.request_id, end.state, end.ended) for end in ends] == [
        ("a", DeferredState.PUBLISHED, True),
        ("b", DeferredState.PUBLISHED, True),
        ("c", DeferredState.FAILED, True),
    ]
    assert ends[0].answer.label == "greeting"
    assert ends[2].answer is None
    assert [list(message.request_ids) for _, message, _ in script.asked] == [["a", "b", "c"], ["b", "c"]]


@both
def test_without_anybody_there_the_call_ends_soon_and_says_so(face: Face) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with face(address) as client, pytest.raises(Unavailable) as error:
        client.score("hello")
    assert error.value.details() == f"no service at {address} (Connection refused); is it running? `make up` starts one"


@both
def test_a_listener_of_another_protocol_is_said(face: Face) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        pool.submit(answer_as_http, listening)
        says = "speaks no gRPC: it may be the address of HTTP or of metrics"
        with face(f"127.0.0.1:{listening.getsockname()[1]}") as client, pytest.raises(Unavailable, match=says):
            client.score("hello")


def answer_as_http(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        connection.recv(1 << 16)


@both
def test_a_name_that_is_unknown_is_said(face: Face) -> None:
    said = r"^no service at no-such-host.invalid:1 \(Domain name not found\); is it running"
    with face("no-such-host.invalid:1") as client, pytest.raises(Unavailable) as error:
        client.score("hello")
    assert re.match(said, error.value.details())


@both
def test_a_call_ends_with_its_deadline_though_nobody_answers(face: Face) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, face(f"127.0.0.1:{silent.getsockname()[1]}") as client:
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="no answer within the timeout of 200 ms; allow more time"):
            client.score("hello", timeout_ms=200)
        assert 0.19 < time.monotonic() - started < 2


@both
def test_a_service_that_fails_all_calls_is_hardly_called_more(face: Face) -> None:
    with scripted(LOST) as script, face(script.address) as client:
        for number in range(200):
            with pytest.raises(Unavailable):
                client.score(f"text {number}")
    assert 200 < len(script.asked) <= 1.1 * 200


def met(script: Script, client: Threads | Loop) -> int:
    """How many of ten calls a server meets."""
    before = len(script.asked)
    for _ in range(10):
        client.score("hello")
    return len(script.asked) - before


@both
def test_calls_are_spread_over_all_addresses(face: Face) -> None:
    with scripted(ANSWER) as one, scripted(ANSWER) as two, face([one.address, two.address]) as client:
        eventually(lambda: met(one, client) == 5)
        assert met(two, client) == 5


@both
def test_a_replica_that_is_not_serving_is_left_out_while_it_still_listens(face: Face) -> None:
    with scripted(ANSWER) as one, scripted(ANSWER) as two, face([one.address, two.address]) as client:
        eventually(lambda: met(one, client) == 5)
        one.be(health_pb2.HealthCheckResponse.NOT_SERVING)
        eventually(lambda: met(one, client) == 0)
        assert met(two, client) == 10
        one.be(health_pb2.HealthCheckResponse.SERVING)
        eventually(lambda: met(one, client) == 5)


@pytest.mark.heavy
def test_a_server_with_default_settings_takes_no_offence_at_pings() -> None:
    """Three of them while it sends nothing, sooner than every five minutes, and such a server closes the connection."""
    with scripted([Silence(7), ended("a")]) as script, Client(script.address, attempts=1) as client:
        assert [it.request_id for it in client.watch(["a"])] == ["a"]
    assert len(script.asked) == 1


def test_threads_may_share_a_client() -> None:
    with scripted(ANSWER) as script, Client(script.address) as client, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(client.score, [f"text {number}" for number in range(200)]))
    assert {answer.label for answer in answers} == {"greeting"}
    assert sorted(message.texts[0] for _, message, _ in script.asked) == sorted(f"text {n}" for n in range(200))


def test_a_closed_client_says_so_and_makes_no_call_again() -> None:
    with scripted(ANSWER) as script:
        client = Client(script.address)
        client.close()
        with pytest.raises(ValueError, match="closed channel"):
            client.score("hello")
    assert script.asked == []


def silent(folder: Path) -> socket.socket:
    """A listener that says nothing, where nobody but this test connects: a port may have been another server's."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "silent"))
    listening.listen()
    return listening


def test_closing_ends_calls_under_way(tmp_path: Path) -> None:
    with silent(tmp_path) as listening, ThreadPoolExecutor(1) as pool:
        client = Client(f"unix:{listening.getsockname()}")
        call = pool.submit(client.score, "hello")
        listening.accept()
        client.close()
        with pytest.raises(Unavailable):
            call.result(timeout=5)


async def test_closing_cancels_calls_under_way_in_a_loop(tmp_path: Path) -> None:
    with silent(tmp_path) as listening:
        client = AsyncClient(f"unix:{listening.getsockname()}")
        call = asyncio.create_task(client.score("hello"))
        await asyncio.to_thread(listening.accept)
        await client.close()
        with pytest.raises(asyncio.CancelledError):
            await call


#: An attempt is over, and the next one is a minute away.
LATER = Ends(grpc.StatusCode.RESOURCE_EXHAUSTED, milliseconds="60000")


def test_closing_ends_a_call_that_waits_for_another_attempt() -> None:
    with scripted(LATER) as script, ThreadPoolExecutor(1) as pool:
        client = Client(script.address)
        made = pool.submit(client.score, "hello", timeout_ms=120_000)
        eventually(lambda: script.over)
        client.close()
        with pytest.raises(Unavailable):
            made.result(timeout=5)
    assert len(script.asked) == 1


def test_closing_ends_a_watch_that_has_told_of_work() -> None:
    with scripted([ended("a"), Silence(20)]) as script, ThreadPoolExecutor(1) as pool:
        client = Client(script.address)
        watched = client.watch(["a", "b"])
        assert next(watched).request_id == "a"
        made = pool.submit(next, watched)
        client.close()
        with pytest.raises(Unavailable):
            made.result(timeout=5)
    assert len(script.asked) == 1


async def test_closing_cancels_a_call_in_a_loop_that_waits_for_another_attempt() -> None:
    with scripted(LATER) as script:
        client = AsyncClient(script.address)
        call = asyncio.create_task(client.score("hello", timeout_ms=120_000))
        await asyncio.to_thread(eventually, lambda: script.over)
        await client.close()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(call, 5)
    assert len(script.asked) == 1


async def test_a_loop_s_client_belongs_to_its_loop_and_can_be_closed_early() -> None:
    unused = AsyncClient("127.0.0.1:1")
    await unused.close()
    with scripted(ANSWER) as script:
        async with AsyncClient(script.address) as client:
            assert (await client.score("hello")).label == "greeting"

            def elsewhere() -> None:
                asyncio.run(client.score("hello"))

            with pytest.raises(RuntimeError, match="another event loop"):
                await asyncio.to_thread(elsewhere)


async def test_a_task_that_is_cancelled_takes_its_call_with_it() -> None:
    with scripted(Silence(20)) as script:
        async with AsyncClient(script.address) as client:
            task = asyncio.create_task(client.score("hello"))
            await asyncio.to_thread(eventually, lambda: script.asked)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(eventually, lambda: script.over, 5)


@both
def test_a_watch_that_is_left_early_is_over(face: Face) -> None:
    with scripted([ended("a"), Silence(20), ended("b")]) as script, face(script.address) as client:
        assert client.first("watch", ["a", "b"]).request_id == "a"
        eventually(lambda: script.over, 5)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_stays_in_its_process(kind: type[Client] | type[AsyncClient]) -> None:
    with pytest.raises(TypeError, match="make one in each process"):
        copy.copy(kind("127.0.0.1:1"))


def test_an_answer_can_be_pickled() -> None:
    with scripted(ANSWER) as script, Threads(script.address) as client:
        answer = client.score("hello")
    assert copy.deepcopy(answer) == answer


@pytest.mark.heavy
def test_a_chatbot_needs_no_framework_and_no_redis() -> None:
    heavy = {"torch", "openvino", "numpy", "redis", "transformers", "prometheus_client"}
    source = f"import sys, realtime_service.client; print({heavy!r} & set(sys.modules))"
    seen = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    assert seen == "set()\n"


def test_a_path_that_is_newer_than_the_client_is_no_riddle() -> None:
    newer = scoring_pb2.ScoreResponse()
    newer.CopyFrom(ANSWER)
    newer.path = 77  # type: ignore[assignment]
    says = "answered 77, which this client does not know: it is older"
    with scripted(newer) as script, Threads(script.address) as client, pytest.raises(ValueError, match=says):
        client.score("hello")


@pytest.mark.heavy
def test_a_request_that_kills_what_it_meets_meets_two_replicas_at_most() -> None:
    replicas = [mortal() for _ in range(4)]
    try:
        with Client([address for _, address in replicas]) as client:
            for _ in range(20):
                client.score("harmless")
            with pytest.raises(Unavailable):
                client.score("deadly")
            assert client.score("harmless").label == "greeting"
        assert sum(process.poll() is not None for process, _ in replicas) <= 2
    finally:
        for process, _ in replicas:
            process.kill()
            process.wait()


def mortal() -> "tuple[subprocess.Popen[str], str]":
    """A replica in a process of its own, which dies of one text, and its address."""
    command = [sys.executable, "-m", "tests.realtime_service.client.mortal"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize(("attempts", "again"), [(1, [False]), (2, [True] * 5 + [False])])
def test_a_watch_that_had_lasted_is_asked_for_again_each_time(attempts: int, again: list[bool]) -> None:
    """The service ends a watch on which nothing happens; one that it ends at once costs an attempt."""
    clock = SimulatedClock()
    watched = Watched({"a": ""}, 1e6, attempts, clock.monotonic)
    idle, found = Unavailable(grpc.StatusCode.UNAVAILABLE, "nothing happened on this stream"), list[bool]()
    for seconds in [LASTED_SECONDS] * 5 + [LASTED_SECONDS / 2]:
        watched.request()
        clock.advance(seconds)
        found.append(watched.goes_on(idle))
        if not found[-1]:
            break
    assert found == again

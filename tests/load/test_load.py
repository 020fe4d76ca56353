"""The load generator of `make bench-online`, against real servers: what it sends, when, and what became of it."""

import asyncio
import base64
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from shared_model.releases import pointer
from shared_model.releases.store import Store
from tests.benchmarks import replicas
from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.online import stage as stages
from tests.benchmarks.online import texts
from tests.benchmarks.online.stage import Generators, Stage
from tests.load import arrivals, generator, load
from tests.load.calls import OK, RESOURCE_EXHAUSTED, statuses
from tests.load.child import Child
from tests.load.echo import PATH
from tests.load.plans import Plan
from tests.load.wire import LOST, Wire, find_header, prepare
from tests.realtime_service.rollout import tiny_releases

DEADLINE_EXCEEDED = 4


class Server:
    """A grpc.aio server on a thread of its own. The text of a call selects its action: refuse, hang, or answer."""

    def __enter__(self) -> "Server":
        self._started, self._loop = threading.Event(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self.close()
        self._thread.join()
        self._loop.close()

    def close(self) -> None:
        """At once: what is in flight is cut off."""
        self._loop.call_soon_threadsafe(self._over.set)

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(self._answer)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", {"Score": handler}),))
        self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        self._started.set()
        await self._over.wait()
        await server.stop(None)

    async def _answer(self, raw: bytes, context: "grpc.aio.ServicerContext[Any, Any]") -> bytes:
        if b"refuse" in raw:
            trailers = (("retry-after-ms", "5"), ("details-bin", bytes(range(200))))
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "später", trailers)
        if b"patient" in raw and (context.time_remaining() or 0.0) < 5:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the deadline is near")
        if b"hang" in raw:
            await asyncio.sleep(60)
        return raw


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def plan(server: Server, *sent: str, **more: Any) -> Plan:
    return Plan(address=server.address, texts=sent, method=PATH, **{"seconds": 10.0, **more})


def test_a_timeout_is_the_deadline_of_callers_that_are_not_patient(server: Server) -> None:
    hurried = plan(server, "patient", timeout_ms=3_000, once=True)
    assert statuses(generator.run(hurried, time.monotonic())) == {grpc.StatusCode.FAILED_PRECONDITION.value[0]: 1}
    assert statuses(generator.run(replace(hurried, patient=True), time.monotonic())) == {OK: 1}


def test_every_text_is_sent_once_and_its_status_read(server: Server) -> None:
    calls = generator.run(plan(server, "a", "refuse", "b", once=True), time.monotonic())
    assert calls.status.tolist() == [OK, RESOURCE_EXHAUSTED, OK]
    assert (calls.ended > calls.sent).all()
    assert calls.cpu_seconds > 0


def test_whole_requests_are_sent_in_turn(server: Server) -> None:
    requests = [base64.b64encode(it).decode() for it in (b"refuse", b"other", b"a refused one")]
    calls = generator.run(plan(server, messages=requests, once=True), time.monotonic())
    assert calls.status.tolist() == [RESOURCE_EXHAUSTED, OK, RESOURCE_EXHAUSTED]


def test_more_than_a_window_of_bytes_gets_through(server: Server) -> None:
    """HTTP/2 lets a sender have 64 KiB on its way until the receiver gives more."""
    several = ["z" * 10_000 + str(n) for n in range(60)]
    calls = generator.run(plan(server, *several, once=True, in_flight=60), time.monotonic())
    assert statuses(calls) == {OK: 60}
    with pytest.raises(ValueError, match="takes more than one frame"):
        prepare(b"z" * 20_000)


def test_no_more_is_sent_than_the_peer_has_room_for() -> None:
    wire = Wire("localhost", PATH, 1_000)
    for _ in range(20):
        wire.call(prepare(b"z" * 10_000))
    assert 60_000 <= wire.outgoing.count(b"z") <= 65_535
    wire.receive(bytes([0, 0, 4, 8, 0, 0, 0, 0, 0]) + (200_000).to_bytes(4, "big"))
    assert wire.outgoing.count(b"z") == 200_000


@pytest.mark.timed
def test_a_closed_loop_keeps_its_calls_in_flight_until_its_time_is_over(server: Server) -> None:
    began = time.monotonic()
    calls = generator.run(plan(server, "a", "b", in_flight=4, seconds=0.3), began)
    assert statuses(calls) == {OK: len(calls.due)}
    assert len(calls.due) > 20
    assert calls.due.max() <= began + 0.31
    # Each that ends is replaced: four that end together by one, two, three and four on their way.
    on_their_way = [((calls.sent <= at) & (calls.ended > at)).sum() for at in calls.sent[4:]]
    assert max(on_their_way) == 4
    assert sum(on_their_way) / len(on_their_way) > 2.4


def test_an_open_loop_waits_for_no_answer(server: Server) -> None:
    began = time.monotonic()
    due = [n / 100 for n in range(50)]
    calls = generator.run(plan(server, "hang", due=due, seconds=0.5, timeout_ms=400), began)
    assert (calls.due - began).tolist() == pytest.approx(due)
    # All but the first ten were due while nothing had been answered.
    assert (calls.sent < calls.ended.min()).sum() > 30
    # The server resets each of them after its status; that is no second end.
    assert statuses(calls) == {DEADLINE_EXCEEDED: 50}
    # It waits without spinning.
    assert calls.generator_share < 0.25


def test_calls_that_a_server_takes_with_it_are_lost(server: Server) -> None:
    threading.Timer(0.3, server.close).start()
    calls = generator.run(plan(server, "a", "hang", due=[0.0, 0.1, 0.8, 0.9], seconds=1.0), time.monotonic())
    assert calls.good(250) == 1
    assert calls.status[0] == OK
    assert calls.status[1] != OK
    assert calls.status[2:].tolist() == [LOST, LOST]


@pytest.mark.heavy
def test_loads_start_when_told_and_come_back_whole(server: Server) -> None:
    due = arrivals.poisson(200.0, 0.3, seed=3).tolist()
    first, second = load.run_together(
        [plan(server, "a", in_flight=2, seconds=0.5), plan(server, "b", due=due, seconds=0.3)], [0.0, 0.1]
    )
    assert second.due[0] - first.due[0] == pytest.approx(0.1 + due[0], abs=0.01)
    assert statuses(first) == {OK: len(first.due)}
    assert statuses(second) == {OK: len(due)}


@pytest.mark.heavy
def test_an_echo_tells_its_own_cpu_time() -> None:
    with Child("tests.load.echo", "100") as echo:
        before = echo.ask()["cpu_seconds"]
        calls = load.run(Plan(address=echo.opened["address"], texts=["a"], seconds=0.3, method=PATH))
        assert statuses(calls) == {OK: len(calls.due)}
        assert 0 < echo.ask()["cpu_seconds"] - before < 5


@pytest.mark.heavy
def test_a_child_that_has_ended_answers_nothing_any_more() -> None:
    with Child("tests.load.echo", "100") as echo:
        for _ in range(2):
            with pytest.raises(CannotMeasure, match="echo ended with 1; its last lines say why"):
                echo.ask(a_question_it_does_not_know=True)


def test_headers_are_found_whatever_stands_before_them() -> None:
    literal = b"\x40\x05x-one\x03abc" + b"\x00\x0bgrpc-status\x0214"
    assert find_header(b"\x20\x88" + b"\x5f\x04text" + literal, b"grpc-status") == b"14"
    # A length of more than 126 takes several bytes.
    long = b"\x00\x01x" + b"\x7f\x80\x01" + b"v" * 255
    assert find_header(long + literal, b"grpc-status") == b"14"
    assert find_header(b"\x88", b"grpc-status") is None


def test_answers_are_read_however_they_are_cut() -> None:
    wire = Wire("localhost", PATH, 1_000)
    assert [wire.call(prepare(b"a")), wire.call(prepare(b"b"))] == [1, 3]
    trailers = b"\x40\x0bgrpc-status\x018"
    frames = bytes([0, 0, len(trailers), 1, 5, 0, 0, 0, 3]) + trailers + bytes([0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8])
    ended = [end for byte in frames for end in wire.receive(bytes([byte]))]
    assert ended == [(3, RESOURCE_EXHAUSTED), (1, LOST)]


@pytest.mark.heavy
def test_a_stage_loads_a_real_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tiny round: capacity, then interactive calls beside bulk ones, each answered by its lane."""
    store = Store(tmp_path)
    pointer.promote(store, None, tiny_releases.seal(store, "tiny").id)
    monkeypatch.setenv("TANDEM_RELEASES", str(tmp_path))
    monkeypatch.setattr(stages, "_CAPACITY_SECONDS", 1.5)
    said = list[str]()
    generators = Generators()
    with replicas.place() as place, Stage(place, texts.load(None), generators, said.append, skip=0) as stage:
        assert stage.capacity > 5
        bulk = Plan(address=stage.address, texts=stage.bulk(500), seconds=1.0, in_flight=8, priority="BATCH")
        due = arrivals.poisson(20.0, 1.0, seed=1).tolist()
        chat = Plan(address=stage.address, texts=stage.interactive(40), seconds=1.0, due=due, priority="REAL_TIME")
        for calls in stage.run_together(["bulk", "chat"], [bulk, chat], [0.0, 0.0]):
            assert statuses(calls) == {OK: len(calls.due)}
        with Child("tests.load.echo", "220") as server:
            stage.run("echo", replace(chat, address=server.opened["address"], method=PATH))
    said = [line.partition(":")[0].strip() for line in said]
    # The service does not answer the last load, and is not watched.
    assert said == ["saturating", "of a core", "latency lane, texts/s", "bulk", "chat", "of a core", "echo"]
    # A load that keeps the service busy shows its own threads, and both loads count in what ran at once.
    (alone,), (together,) = generators.cores["saturating"], generators.cores["bulk, chat"]
    assert alone.event_loop > 0.05
    assert alone.calls > 5
    assert together.calls > 0

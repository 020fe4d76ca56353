"""When the calls of a burst came, as their handlers learn it, against when they really came; in which order they start;
and that a caller who leaves is noticed."""

import asyncio
import functools
import gzip
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime_service.errors import DeadlineExpired, Overloaded, Status, status_of
from realtime_service.settings import ServiceSettings
from realtime_service.transport import accept_queue, event_loop, rpc_handlers
from realtime_service.transport.accept_queue import ARRIVED, AcceptQueue, ReadQueue
from realtime_service.transport.listener import read_at_once
from realtime_service.transport.messages import MAX_MESSAGE_BYTES, SMALL_BYTES
from realtime_service.transport.rpc_handlers import Context
from tests.load import wire
from tests.properties import examples
from tests.realtime_service.cluster.directory import until
from tests.realtime_service.listeners import listening

SERVICE = "test.Burst"
PATH = f"/{SERVICE}/Ask"
#: gRPC deadline of all calls: what is left of it when a handler starts tells the true age of its call.
DEADLINE_MS = 60_000
CALLS = 500
BUSY_SECONDS = 0.001


def burst(address: str) -> None:
    """Make all calls in one write, on one connection, and wait for their ends."""
    client, ended = wire.Wire(address, PATH, DEADLINE_MS), 0
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        for _ in range(CALLS):
            client.call(wire.prepare(b"hello"))
        connection.sendall(client.outgoing)
        client.outgoing.clear()
        while ended < CALLS:
            ended += len(client.receive(connection.recv(1 << 20)))


async def test_the_age_of_a_call_is_known_when_its_handler_starts() -> None:
    """The last call of the burst waits for the handlers of all others, which keep the event loop busy."""
    true_ages, early, late = list[float](), list[float](), list[float]()

    async def ask(raw: bytes, context: Context) -> bytes:
        # The machine may pause this process between two looks at a clock.
        before, left, after = time.monotonic(), context.time_remaining(), time.monotonic()
        arrived = ARRIVED.get()
        assert arrived is not None
        assert left is not None
        true_ages.append(DEADLINE_MS / 1000 - left)
        early.append(true_ages[-1] - (after - arrived))
        late.append(true_ages[-1] - (before - arrived))
        until = time.thread_time() + BUSY_SECONDS
        while time.thread_time() < until:
            pass
        return raw

    handlers = grpc.method_handlers_generic_handler(SERVICE, {"Ask": rpc_handlers.unary(ask)})
    async with listening(handlers) as address:
        await asyncio.to_thread(burst, address)
    assert len(true_ages) == CALLS
    longest = max(true_ages)
    assert longest > 0.5 * CALLS * BUSY_SECONDS
    assert max(early) < 0.4 * longest
    # A deadline is read off another clock than an arrival, in milliseconds.
    assert min(late) > -0.005


@dataclass(frozen=True)
class Waiting:
    """An `Overload`."""

    starved: bool

    def expired(self, waited: float) -> None:
        raise AssertionError("all calls have a minute")


@pytest.mark.parametrize("starved", [True, False])
@pytest.mark.parametrize("end", ["refused by the look", "refused", "expired", "answered"])
async def test_the_newest_call_is_read_soon_after_one_that_came_too_late_for_devices_without_work(
    end: str, starved: bool
) -> None:
    ends = {"refused": Overloaded("too late", 0.1), "expired": DeadlineExpired("the deadline passed")}
    arrivals = list[float]()

    def look(raw: bytes, context: Context, ahead: int) -> Status | None:
        arrivals.append(ARRIVED.get() or 0.0)
        until = time.thread_time() + BUSY_SECONDS
        while time.thread_time() < until:
            pass
        return status_of(ends["refused"]) if end == "refused by the look" else None

    async def ask(raw: bytes, context: Context) -> bytes:
        if end in ends:
            raise ends[end]
        return raw

    handlers = grpc.method_handlers_generic_handler(
        SERVICE, {"Ask": rpc_handlers.unary(ask, look, overload=Waiting(starved))}
    )
    async with listening(handlers) as address:
        await asyncio.to_thread(burst, address)
    assert len(arrivals) == CALLS
    in_order = sorted(arrivals)
    before_its_turn = max(in_order.index(arrived) - place for place, arrived in enumerate(arrivals))
    # Those that are read side by side may end in any order.
    assert (before_its_turn > 50) == (starved and end != "answered")


async def test_a_handler_hears_that_its_caller_has_left() -> None:
    started, left = asyncio.Event(), asyncio.Event()

    async def ask(raw: bytes, context: Context) -> bytes:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            left.set()
        return raw

    handlers = grpc.method_handlers_generic_handler(SERVICE, {"Ask": rpc_handlers.unary(ask)})
    async with listening(handlers) as address, grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(PATH)(b"hello")  # type: ignore[call-arg]
        await asyncio.wait_for(started.wait(), 20)
        call.cancel()
        await asyncio.wait_for(left.wait(), 20)


async def test_items_are_passed_in_their_order_and_few_in_a_turn_of_the_event_loop() -> None:
    passed, turns = list[int](), list[int]()
    queue = AcceptQueue[int](asyncio.get_running_loop(), 4, passed.append)
    for number in range(10):
        queue.put(number, "a")
    while len(passed) < 10:
        assert queue.waiting("a") == 10 - len(passed)
        await asyncio.sleep(0)
        turns.append(len(passed))
    assert passed == list(range(10))
    assert turns == [4, 8, 10]
    assert queue.waiting("a") == 0
    queue.put(10, "a")
    await asyncio.sleep(0)
    assert passed[-1] == 10


async def test_an_item_that_nothing_waits_before_goes_on_at_once_and_few_do_in_a_turn() -> None:
    passed, turns = list[int](), list[int]()
    queue = AcceptQueue[int](asyncio.get_running_loop(), 4, passed.append)
    for number in range(10):
        queue.hand(number, "a")
    turns.append(len(passed))
    while len(passed) < 10:
        await asyncio.sleep(0)
        turns.append(len(passed))
    assert passed == list(range(10))
    assert turns == [4, 8, 10]


async def test_an_item_without_a_place_waits_for_it() -> None:
    passed = list[str]()
    queue = ReadQueue[str](asyncio.get_running_loop(), 4, passed.append, places=1, places_of_address=1)
    for call in ("a 0", "a 1"):
        queue.hand(call, "a")
    assert passed == ["a 0"]
    queue.ended("a")
    await asyncio.sleep(0)
    assert passed == ["a 0", "a 1"]


class _Loop:
    """The part of an event loop that a queue uses, without one: turns are taken by `turn`."""

    def __init__(self) -> None:
        self._due = deque[Callable[[], None]]()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._due.append(callback)

    def turn(self) -> bool:
        """Whether there was one to take."""
        if not self._due:
            return False
        self._due.popleft()()
        return True


def read_queue(
    loop: _Loop, passed: list[int], at_once: int = 4, over: Callable[[int], bool] = lambda call: False
) -> ReadQueue[int]:
    return ReadQueue[int](cast(asyncio.AbstractEventLoop, loop), at_once, passed.append, 10_000, 10_000, over)


def test_the_newest_call_is_read_after_an_oldest_where_it_is_preferred() -> None:
    loop, passed = _Loop(), list[int]()
    queue = read_queue(loop, passed, at_once=1)
    for number in range(8):
        queue.put(number, "a")
    loop.turn()
    queue.prefer_newest("a")
    queue.prefer_newest("a")
    queue.put(8, "a")
    for _ in range(3):
        loop.turn()
    assert passed == [0, 1, 8, 2]
    queue.prefer_newest("a")
    while loop.turn():
        queue.prefer_newest("a")
    # It is asked for again after each, and the oldest go on all the same.
    assert passed[4:] == [3, 7, 4, 6, 5]
    # That of another address, or of calls that have all been read, was not asked for.
    queue.prefer_newest("a")
    for number in range(4):
        queue.put(number, "a")
    while loop.turn():
        queue.prefer_newest("b")
    assert passed[9:] == [0, 1, 2, 3]


def test_calls_that_are_over_end_unread_and_a_few_are_looked_at_with_each_that_is_read() -> None:
    loop, passed, asked = _Loop(), list[int](), list[int]()
    over = {*range(10), 12}

    def ended(call: int) -> bool:
        asked.append(call)
        return call in over

    queue = read_queue(loop, passed, at_once=1, over=ended)
    for number in range(15):
        queue.put(number, "a")
    loop.turn()
    # The next one is read, over or not: it was not looked at.
    assert (asked, passed) == ([0, 1, 2, 3], [4])
    while loop.turn():
        pass
    assert passed == [4, 9, 10, 11, 13, 14]
    assert len(queue) == queue.waiting("a") == 0


@given(
    st.lists(st.tuples(st.lists(st.sampled_from("abc"), max_size=9), st.sets(st.sampled_from("abc"))), max_size=60),
    st.integers(1, 5),
)
@settings(max_examples=examples(200))
def test_no_call_is_lost_or_waits_for_more_than_twice_those_that_came_before_it(
    turns_before: list[tuple[list[str], set[str]]], at_once: int
) -> None:
    """`turns_before`: the addresses of the calls that come before each turn, and those whose newest is preferred."""
    loop, passed, addresses = _Loop(), list[int](), list[str]()
    queue = read_queue(loop, passed, at_once)
    passed_before, ahead = list[int](), list[int]()
    for came, preferred in turns_before:
        for address in came:
            passed_before.append(sum(addresses[it] == address for it in passed))
            ahead.append(queue.waiting(address))
            queue.put(len(addresses), address)
            addresses.append(address)
        for address in preferred:
            queue.prefer_newest(address)
        loop.turn()
    while loop.turn():
        for address in "abc":
            queue.prefer_newest(address)
    assert sorted(passed) == list(range(len(addresses)))
    turns = Counter[str]()
    for call in passed:
        assert turns[addresses[call]] - passed_before[call] <= 2 * ahead[call] + 1
        turns[addresses[call]] += 1


LARGE = bytes(SMALL_BYTES + 1)
PACKED = gzip.compress(LARGE)
#: A false trailer: a size of 4 GB.
FALSE_SIZE = PACKED[:-4] + b"\xff" * 4
#: How long large messages keep their places.
KEPT_SECONDS = 0.3


@pytest.mark.parametrize(
    ("message", "bytes_per_second", "kept"),
    [
        (bytes(SMALL_BYTES), 1.0, 0.0),
        (LARGE, len(LARGE) / KEPT_SECONDS, KEPT_SECONDS),
        (PACKED, len(LARGE) / KEPT_SECONDS, KEPT_SECONDS),
        (FALSE_SIZE, MAX_MESSAGE_BYTES / KEPT_SECONDS, KEPT_SECONDS),
    ],
    ids=["small", "large", "packed", "false size"],
)
async def test_large_messages_of_an_address_come_no_faster_than_its_places_take(
    message: bytes, bytes_per_second: float, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept_queue, "BYTES_PER_SECOND", bytes_per_second)

    async def ask(raw: bytes, context: Context) -> bytes:
        return raw[:1]

    of_address = read_at_once(ServiceSettings())[1]
    handler = grpc.method_handlers_generic_handler(SERVICE, {"Ask": rpc_handlers.unary(ask)})
    async with listening(handler) as address, grpc.aio.insecure_channel(address) as channel:
        call, began = channel.unary_unary(PATH), time.monotonic()
        for _ in range(of_address):
            assert await call(message, timeout=20) == message[:1]
        assert await call(b"small", timeout=20) == b"s"
        assert time.monotonic() - began >= kept / of_address


def test_places_that_large_messages_keep_are_free_one_after_the_other() -> None:
    """Those that were read together would else be followed by others that are."""
    due = list[float]()
    loop: Any = SimpleNamespace(
        time=lambda: 100.0, call_soon=lambda turn: None, call_at=lambda at, *ended: due.append(at)
    )
    queue = ReadQueue[str](loop, 4, lambda item: None, places=8, places_of_address=2)
    kept = MAX_MESSAGE_BYTES / (2 * accept_queue.BYTES_PER_SECOND)
    for address in ("a", "a", "b"):
        queue.hand("a call", address)
        queue.ended(address, MAX_MESSAGE_BYTES)
    assert due == pytest.approx([100 + kept, 100 + 2 * kept, 100 + kept])
    for address in ("a", "a", "b"):
        queue.ended(address)
    queue.hand("a call", "a")
    queue.ended("a", MAX_MESSAGE_BYTES)
    assert due[3:] == pytest.approx([100 + kept])


async def test_a_flood_from_one_address_delays_no_call_of_another() -> None:
    passed = list[str]()
    queue = AcceptQueue[str](asyncio.get_running_loop(), 2, passed.append)
    for number in range(100):
        queue.put(f"flood {number}", "a")
    await asyncio.sleep(0)
    for call in ("b 0", "c 0", "b 1"):
        queue.put(call, call[0])
    for _ in range(60):
        await asyncio.sleep(0)
    assert passed[:8] == ["flood 0", "flood 1", "flood 2", "b 0", "c 0", "flood 3", "b 1", "flood 4"]
    assert passed[8:] == [f"flood {number}" for number in range(5, 100)]


@settings(max_examples=examples(30))
@given(st.data())
async def test_few_messages_of_an_address_are_read_at_once_and_all_are_read(data: st.DataObject) -> None:
    places, of_address = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    reading, passed = list[str](), list[str]()

    def read(call: str) -> None:
        own, others = [it for it in reading if it[0] == call[0]], len(reading)
        assert len(own) < (of_address if others < places else 1)
        reading.append(call)
        passed.append(call)

    queue = ReadQueue[str](asyncio.get_running_loop(), 2, read, places, of_address)
    calls = [f"{address} {number}" for number, address in enumerate(data.draw(st.text("abc", max_size=12)))]
    waiting = deque(calls)
    while waiting or len(queue) or reading:
        step = data.draw(st.sampled_from(["put", "end", "turn"]))
        if step == "put" and waiting:
            queue.put(waiting[0], waiting.popleft()[0])
        elif step == "end" and reading:
            queue.ended(reading.pop(data.draw(st.integers(0, len(reading) - 1)))[0])
        await asyncio.sleep(0)
    for address in "abc":
        assert [it for it in passed if it[0] == address] == [it for it in calls if it[0] == address]


async def test_a_place_that_another_address_took_meanwhile_is_waited_for() -> None:
    passed = list[str]()
    queue = ReadQueue[str](asyncio.get_running_loop(), 1, passed.append, 2, 2)
    for call in ("a 1", "b 1", "a 2"):
        queue.put(call, call[0])
    for _ in range(8):
        await asyncio.sleep(0)
    assert passed == ["a 1", "b 1"]
    queue.ended("a")
    await asyncio.sleep(0)
    assert passed[2:] == ["a 2"]


def test_an_event_loop_that_grpc_does_not_watch_is_an_error() -> None:
    loop = event_loop.Loop()
    with pytest.raises(LookupError, match="grpcio works in another way"):
        event_loop.ensure_read_at_once(loop)
    loop.close()


async def test_events_behind_one_that_fails_are_handled() -> None:
    read, write = socket.socketpair()
    loop, events, handled = asyncio.get_running_loop(), deque((1, 0, 2)), list[float]()
    loop.set_exception_handler(lambda _, failed: None)

    def _handle_events() -> None:
        """As grpc.aio: one byte, then every event."""
        with suppress(BlockingIOError):
            read.recv(1)
        while events:
            handled.append(1 / events.popleft())

    with read, write:
        read.setblocking(False)
        loop.add_reader(read, functools.partial(_handle_events))
        event_loop.ensure_read_at_once(loop)
        write.send(b"111")
        await until(lambda: not events)
        loop.remove_reader(read)
    assert handled == [1.0, 0.5]

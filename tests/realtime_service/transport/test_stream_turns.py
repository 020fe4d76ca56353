"""Addresses take turns with the messages of their streams, and few large messages are read at once."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from realtime_service.transport import stream_turns
from realtime_service.transport.messages import SMALL_BYTES
from realtime_service.transport.stream_turns import StreamReader, StreamTurns
from tests.realtime_service.cluster.directory import until

EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # not in its stubs
LARGE, SMALL = bytes(SMALL_BYTES + 1), b"small"
PLACES, OF_ADDRESS = 3, 2


class Streams:
    """Streams of one process. `reading`: those whose next message gRPC takes now."""

    def __init__(self) -> None:
        self.turns = StreamTurns(PLACES, OF_ADDRESS)
        self.reading: list[asyncio.Future[Any]] = []

    def open(self, address: str) -> StreamReader:
        return self.turns.reader(SimpleNamespace(read=self._read, peer=lambda: f"ipv4:{address}:1"))

    async def _read(self) -> Any:
        coming: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.reading.append(coming)
        return await coming


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_turns, "NEW_SECONDS", 60.0)
    monkeypatch.setattr(stream_turns, "PATIENCE_SECONDS", 60.0)


def begin(streams: Streams, address: str, count: int) -> "list[asyncio.Task[Any]]":
    return [asyncio.create_task(streams.open(address).next()) for _ in range(count)]


async def test_an_address_has_few_places_and_another_one_its_own(patient: None) -> None:
    streams = Streams()
    tasks = begin(streams, "10.0.0.1", 9)
    await settle()
    assert len(streams.reading) == OF_ADDRESS
    tasks += begin(streams, "10.0.0.2", 1)
    await settle()
    assert len(streams.reading) == OF_ADDRESS + 1
    for task in tasks:
        task.cancel()


@pytest.mark.parametrize("message", [SMALL, LARGE, EOF])
async def test_a_place_is_given_to_the_next_stream_after_a_message(patient: None, message: Any) -> None:
    streams = Streams()
    tasks = begin(streams, "10.0.0.1", 9)
    for number in range(9):
        await until(lambda number=number: len(streams.reading) > number)  # type: ignore[misc]
        streams.reading[number].set_result(message)
    assert await asyncio.gather(*tasks) == [message] * 9


async def test_large_messages_of_an_address_come_no_faster_than_its_places_take(
    patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_turns, "BYTES_PER_SECOND", 1.0)
    streams = Streams()
    tasks = begin(streams, "10.0.0.1", 9)
    await settle()
    for coming in list(streams.reading):
        coming.set_result(LARGE)
    await settle()
    assert [task.done() for task in tasks] == [True] * OF_ADDRESS + [False] * (9 - OF_ADDRESS)
    assert len(streams.reading) == OF_ADDRESS
    for task in tasks:
        task.cancel()


@pytest.mark.parametrize("before", ["silence", "a small message"])
async def test_a_large_message_that_comes_without_a_place_waits_for_one(
    before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams()
    reader = streams.open("10.0.0.1")
    if before == "a small message":
        reader._patience = 0.0
    late = asyncio.create_task(reader.next())
    await until(lambda: not streams.turns.reading._all_taken and len(streams.reading) == 1)
    monkeypatch.setattr(stream_turns, "NEW_SECONDS", 60.0)
    others = begin(streams, "10.0.0.1", OF_ADDRESS)
    await until(lambda: len(streams.reading) == 1 + OF_ADDRESS)
    streams.reading[0].set_result(LARGE)
    await settle()
    assert not late.done()
    streams.reading[1].set_result(SMALL)
    assert await late == LARGE
    for task in others:
        task.cancel()
    await until(lambda: not streams.turns.reading._all_taken)


async def test_idle_streams_keep_no_places() -> None:
    streams = Streams()
    tasks = begin(streams, "10.0.0.1", 9)
    await until(lambda: len(streams.reading) == 9)
    for task in tasks:
        task.cancel()


async def test_streams_that_end_while_they_wait_or_read_give_their_places_back(patient: None) -> None:
    streams = Streams()
    tasks = begin(streams, "10.0.0.1", 9)
    await settle()
    for task in tasks:
        task.cancel()
    await settle()
    later = begin(streams, "10.0.0.1", 1)
    await until(lambda: len(streams.reading) == OF_ADDRESS + 1)
    later[0].cancel()


async def test_a_stream_of_small_messages_needs_no_place(patient: None) -> None:
    streams = Streams()
    reader = streams.open("10.0.0.1")
    first = asyncio.create_task(reader.next())
    await until(lambda: len(streams.reading) == 1)
    streams.reading[0].set_result(SMALL)
    await first
    # These take all places.
    tasks = begin(streams, "10.0.0.1", OF_ADDRESS)
    await until(lambda: len(streams.reading) == 1 + OF_ADDRESS)
    second = asyncio.create_task(reader.next())
    await until(lambda: len(streams.reading) == 2 + OF_ADDRESS)
    streams.reading[-1].set_result(SMALL)
    assert await second == SMALL
    for task in tasks:
        task.cancel()


async def test_a_flood_of_small_messages_delays_no_message_of_another_address(patient: None) -> None:
    """All messages come in one turn of the event loop."""
    streams, came = Streams(), list[str]()

    async def take(address: str, reader: StreamReader) -> None:
        await reader.next()
        came.append(address)

    many = [streams.open("10.0.0.1") for _ in range(40)]
    other = streams.open("10.0.0.2")
    for reader in (*many, other):
        reader._patience = 0.0
    tasks = [asyncio.create_task(take("many", it)) for it in many]
    tasks.append(asyncio.create_task(take("other", other)))
    await settle()
    for coming in streams.reading:
        coming.set_result(SMALL)
    await asyncio.gather(*tasks)
    assert came.index("other") <= 6

"""A stream answers every request, in the order it promised, and reads no more than is read of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime_service.errors import DeadlineExpired, Overloaded, ReplicaUnavailable
from realtime_service.transport.scoring_v1.submit_stream import Held, SubmitBatcher
from realtime_service.transport.streaming import SLOT_BYTES, WINDOW, OpenStreams


class Peer:
    """Sends `requests`, and takes answers only while it `reads`."""

    def __init__(self, requests: Iterable[bytes]) -> None:
        self.reads = asyncio.Event()
        self.sent = 0
        self.answers: list[bytes] = []
        self._requests = list(requests)

    async def incoming(self) -> AsyncIterator[bytes]:
        for request in self._requests:
            self.sent += 1
            yield request

    async def write(self, answer: bytes) -> None:
        await self.reads.wait()
        self.answers.append(answer)


async def echo(raw: bytes) -> bytes:
    return raw


async def settle() -> None:
    """Let everything happen that needs no more than the event loop."""
    for _ in range(20 * WINDOW):
        await asyncio.sleep(0)


@pytest.mark.parametrize("in_order", [True, False])
async def test_who_does_not_read_is_not_read_from(in_order: bool) -> None:
    peer = Peer(b"%d" % number for number in range(1000))
    stream = asyncio.create_task(OpenStreams().answer(peer.incoming(), echo, peer.write, in_order=in_order))
    await settle()
    # No request beyond, which would wait in no budget.
    assert peer.sent == WINDOW
    peer.reads.set()
    await stream
    assert sorted(map(int, peer.answers)) == list(range(1000))


@pytest.mark.parametrize("in_order", [True, False])
async def test_a_stream_whose_answers_stay_unread_ends(in_order: bool) -> None:
    peer = Peer(b"%d" % number for number in range(1000))
    with pytest.raises(Overloaded, match=r"not read for 0\.05 s"):
        await OpenStreams(0.0, 0.05).answer(peer.incoming(), echo, peer.write, in_order=in_order)
    assert peer.sent == WINDOW


async def test_large_requests_take_several_places() -> None:
    peer = Peer([bytes(15 * SLOT_BYTES)] * 100)
    stream = asyncio.create_task(OpenStreams().answer(peer.incoming(), echo, peer.write, in_order=False))
    await settle()
    assert peer.sent == WINDOW // 16
    peer.reads.set()
    await stream
    assert len(peer.answers) == 100


async def test_a_request_larger_than_the_window_has_it_for_itself() -> None:
    peer = Peer([bytes(2 * WINDOW * SLOT_BYTES), b"small"])
    peer.reads.set()
    await OpenStreams().answer(peer.incoming(), echo, peer.write, in_order=False)
    assert [len(answer) for answer in peer.answers] == [2 * WINDOW * SLOT_BYTES, 5]


def finishing_in(order: list[int]) -> Callable[[bytes], Awaitable[bytes]]:
    """Answers request i as the order[i]-th."""
    done = [asyncio.Event() for _ in order]

    async def answer(raw: bytes) -> bytes:
        rank = order[int(raw)]
        if rank:
            await done[rank - 1].wait()
        done[rank].set()
        return raw

    return answer


@given(st.integers(1, WINDOW).flatmap(lambda count: st.permutations(range(count))))
def test_answers_come_in_the_order_that_was_promised(order: list[int]) -> None:
    async def answers(in_order: bool) -> list[int]:
        peer = Peer(b"%d" % number for number in range(len(order)))
        peer.reads.set()
        await OpenStreams().answer(peer.incoming(), finishing_in(order), peer.write, in_order=in_order)
        return [int(answer) for answer in peer.answers]

    assert asyncio.run(answers(in_order=True)) == list(range(len(order)))
    assert asyncio.run(answers(in_order=False)) == sorted(range(len(order)), key=order.__getitem__)


async def test_who_leaves_takes_its_requests_with_it() -> None:
    begun: list[bytes] = []
    ended: list[bytes] = []

    async def endless(raw: bytes) -> bytes:
        begun.append(raw)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(raw)
        return raw

    peer = Peer(b"%d" % number for number in range(10))
    stream = asyncio.create_task(OpenStreams().answer(peer.incoming(), endless, peer.write, in_order=False))
    await settle()
    stream.cancel()
    await asyncio.wait([stream])
    await settle()
    assert sorted(ended) == sorted(begun) == [b"%d" % number for number in range(10)]


async def test_a_replica_that_closes_reads_no_more_answers_what_it_has_read_and_says_so() -> None:
    streams, release = OpenStreams(), asyncio.Event()

    async def when_released(raw: bytes) -> bytes:
        await release.wait()
        return raw

    peer = Peer(b"%d" % number for number in range(1000))
    peer.reads.set()
    stream = asyncio.create_task(streams.answer(peer.incoming(), when_released, peer.write, in_order=True))
    await settle()
    streams.close()
    await settle()
    assert not stream.done()
    release.set()
    with pytest.raises(ReplicaUnavailable, match="send what has no answer yet to another"):
        await stream
    assert [int(answer) for answer in peer.answers] == list(range(WINDOW))


async def test_a_stream_that_had_sent_all_ends_well_although_the_replica_closes() -> None:
    streams, release = OpenStreams(), asyncio.Event()

    async def when_released(raw: bytes) -> bytes:
        await release.wait()
        return raw

    peer = Peer([b"1", b"2"])
    peer.reads.set()
    stream = asyncio.create_task(streams.answer(peer.incoming(), when_released, peer.write, in_order=False))
    await settle()
    streams.close()
    release.set()
    await stream
    assert sorted(peer.answers) == [b"1", b"2"]


class Silent(Peer):
    """Sends its requests and then nothing, for ever."""

    async def incoming(self) -> AsyncIterator[bytes]:
        async for request in super().incoming():
            yield request
        await asyncio.Event().wait()


async def test_a_stream_on_which_nothing_happens_ends() -> None:
    peer = Silent([b"1", b"2"])
    peer.reads.set()
    with pytest.raises(DeadlineExpired, match="nothing happened on this stream"):
        await asyncio.wait_for(OpenStreams(0.02).answer(peer.incoming(), echo, peer.write, in_order=False), 20)
    assert peer.answers == [b"1", b"2"]


@pytest.mark.parametrize("idle_seconds", [0.0, 0.02])
async def test_a_stream_that_owes_an_answer_is_not_idle(idle_seconds: float) -> None:
    """Nor is any where idle streams are allowed."""
    peer, answer = Silent([b"1"] if idle_seconds else []), asyncio.Event()

    async def slow(raw: bytes) -> bytes:
        await answer.wait()
        return raw

    stream = asyncio.create_task(OpenStreams(idle_seconds).answer(peer.incoming(), slow, peer.write, in_order=False))
    peer.reads.set()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(stream), 0.2)
    answer.set()
    if idle_seconds:
        with pytest.raises(DeadlineExpired):
            await asyncio.wait_for(stream, 20)
        assert peer.answers == [b"1"]
    stream.cancel()


async def test_a_stream_of_submissions_on_which_nothing_happens_ends() -> None:
    peer = Silent([b"1"])
    peer.reads.set()

    def held(raw: bytes) -> Held:
        return Held(raw, lambda: None)

    async def store(chunk: Sequence[Held]) -> Any:
        return [it.raw for it in chunk]

    with pytest.raises(DeadlineExpired):
        await asyncio.wait_for(
            OpenStreams(0.02).run(SubmitBatcher(peer.incoming(), held, store, cast(Any, peer.write))), 20
        )
    assert peer.answers == [[b"1"]]

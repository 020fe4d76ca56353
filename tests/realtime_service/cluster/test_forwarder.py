"""A call that is sent on: what arrives, what comes back, and where it goes when the first replica does not answer."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import grpc
import pytest

from realtime_service.cluster import forwarded_context
from realtime_service.errors import NEVER_AGAIN, DeadlineExpired, Overloaded, Relayed, ReplicaUnavailable, status_of
from realtime_service.rpc.retryable import EARNED, FIRST_BUDGET
from tests.realtime_service.cluster.directory import LANE, RELEASE, SCORE, Router, routing, until
from tests.realtime_service.cluster.stub import Ends, Step, Stub, Takes, listening

if TYPE_CHECKING:
    from realtime_service.routing.snapshot import SeenLane

BUSY = Overloaded("the lane is full", 0.02)
REFUSED = Ends(status_of(BUSY).code, status_of(BUSY).message, status_of(BUSY).trailers())
LOST = Ends(grpc.StatusCode.UNAVAILABLE)
#: Nobody listens there.
NOWHERE = "127.0.0.1:1"


@contextlib.asynccontextmanager
async def stage(*scripts: Step | list[Step]) -> AsyncIterator[tuple[Router, list[Stub]]]:
    """A router in front of replicas "0", "1", …, which is connected to all of them."""
    async with contextlib.AsyncExitStack() as stack:
        stubs = [Stub(*(script if isinstance(script, list) else [script])) for script in scripts]
        for stub in stubs:
            await stack.enter_async_context(listening(stub))
        addresses = {str(number): stub.address for number, stub in enumerate(stubs)}
        yield await stack.enter_async_context(routing(addresses)), stubs


async def refusal(router: Router, **call: float | str | None) -> Exception:
    try:
        await router.ask(**call)  # type: ignore[arg-type]  # as the call has it
    except (Relayed, DeadlineExpired, ReplicaUnavailable) as error:
        return error
    raise AssertionError("it was answered")


@pytest.mark.parametrize("method", [SCORE, "/inference.GRPCInferenceService/ModelInfer"])
async def test_a_call_arrives_as_it_came(method: str) -> None:
    raw = os.urandom(5_000_000)
    with_it: tuple[tuple[str, str | bytes], ...] = (
        ("x-caller-id", "bot-7"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("odd-bin", b"\x00\xff"),
    )
    async with stage(None) as (router, (stub,)):
        assert await router.ask(raw, seconds=7.0, metadata=with_it, method=method) == raw[::-1]
    (asked,) = stub.asked
    assert (asked.raw, asked.method) == (raw, method)
    assert asked.left is not None
    # gRPC counts by the wall clock, which may be set back a little meanwhile.
    assert 5.0 < asked.left <= 7.1
    assert asked.metadata.items() >= dict(with_it).items()
    forwarded = forwarded_context.read(asked.metadata.items())
    assert (forwarded.path, forwarded.release) == (LANE, RELEASE)


async def test_a_call_without_a_deadline_gets_none() -> None:
    async with stage(None) as (router, (stub,)):
        await router.ask(seconds=None)
    assert stub.asked[0].left is None


@pytest.mark.parametrize(
    "code",
    [code for code in grpc.StatusCode if code.name not in {"OK", "UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED"}],
)
async def test_what_the_other_replica_says_is_passed_on_and_final(code: grpc.StatusCode) -> None:
    said = Ends(code, "texts[0]: is empty, ö", (("x-more", "1"), ("x-more-bin", b"\x00")))
    async with stage(said, said) as (router, stubs):
        told = status_of(await refusal(router))
    assert (told.code, told.message, told.trailers()) == (said.code, said.details, said.trailers)
    assert sum(len(stub.asked) for stub in stubs) == 1


@pytest.mark.parametrize("failure", [LOST, REFUSED, Ends(grpc.StatusCode.CANCELLED)])
async def test_a_call_is_sent_to_one_other_replica_where_that_is_safe(failure: Ends) -> None:
    async with stage(failure, None, None) as (router, stubs):
        assert await router.ask(b"hello", to="0") == b"olleh"
    assert sorted(len(stub.asked) for stub in stubs) == [0, 1, 1]
    (first,), (second,) = (stub.asked for stub in stubs if stub.asked)
    # The decision travels with it and is not made again.
    for name in ("x-tandem-path", "x-tandem-reason", "x-tandem-release"):
        assert first.metadata[name] == second.metadata[name]
    assert router.counted("tandem_forwarded_total", path=LANE, outcome="answered") == 1


@pytest.mark.parametrize("failure", [LOST, REFUSED])
async def test_a_call_that_fails_elsewhere_too_has_failed(failure: Ends) -> None:
    """A request that kills what it meets must not meet them all."""
    async with stage(failure, failure, failure, failure) as (router, stubs):
        told = status_of(await refusal(router))
    assert (told.code, told.message, told.trailers()) == (failure.code, failure.details, failure.trailers)
    assert sum(len(stub.asked) for stub in stubs) == 2


async def test_a_call_that_two_connections_were_lost_with_is_made_again_by_nobody() -> None:
    broken = Ends(grpc.StatusCode.CANCELLED)
    async with stage(broken, broken, None) as (router, stubs):
        told = status_of(await refusal(router, to="0"))
    assert (told.code, told.trailers()) == (grpc.StatusCode.UNAVAILABLE, (NEVER_AGAIN,))
    assert sum(len(stub.asked) for stub in stubs) == 2


async def test_a_call_that_its_caller_repeats_is_sent_once_more_at_most() -> None:
    async with stage(Ends(grpc.StatusCode.CANCELLED), None) as (router, stubs):
        told = status_of(await refusal(router, to="0", repeated=True))
        assert (told.code, told.trailers()) == (grpc.StatusCode.UNAVAILABLE, (NEVER_AGAIN,))
        assert await router.ask(b"hello", to="1", repeated=True) == b"olleh"
    assert [len(stub.asked) for stub in stubs] == [1, 1]


async def test_a_caller_is_not_told_that_it_cancelled() -> None:
    async with stage(Ends(grpc.StatusCode.CANCELLED)) as (router, _):
        assert status_of(await refusal(router)).code is grpc.StatusCode.UNAVAILABLE


async def test_a_call_that_nobody_got_goes_on_to_who_is_there() -> None:
    async with listening(Stub()) as stub:
        addresses = {"0": NOWHERE, "1": "127.0.0.1:2", "2": "127.0.0.1:3", "3": stub.address}
        async with routing(addresses) as router:
            assert await router.ask(b"hello", to="0") == b"olleh"


async def test_a_caller_is_not_told_addresses() -> None:
    async with routing({"0": NOWHERE}) as router:
        told = status_of(await refusal(router))
    assert told.code is grpc.StatusCode.UNAVAILABLE
    assert "127.0.0.1" not in told.message


async def test_a_replica_that_has_left_the_snapshot_is_not_asked() -> None:
    async with stage(None, None) as (router, stubs):
        router.directory.forget("0")
        assert await router.ask(b"hello", to="0") == b"olleh"
        router.directory.forget("1")
        assert isinstance(await refusal(router, to="0"), ReplicaUnavailable)
    assert [len(stub.asked) for stub in stubs] == [0, 1]


async def test_who_would_be_late_is_not_asked_after_a_failure() -> None:
    async with stage(LOST, None) as (router, stubs):
        router.directory.option("1").sent.add(30.0, per_text=0.0)
        assert isinstance(await refusal(router, to="0"), Relayed)
    assert [len(stub.asked) for stub in stubs] == [1, 0]


async def test_nobody_is_asked_after_the_deadline() -> None:
    async with stage(None) as (router, (stub,)):
        assert isinstance(await refusal(router, seconds=-0.001, to="0"), DeadlineExpired)
    assert not stub.asked


async def test_a_call_ends_with_its_deadline_and_is_not_sent_again() -> None:
    async with stage([None, Takes(20)], None) as (router, stubs):
        # The deadline is to be that of a call alone, and not of connecting.
        await asyncio.gather(router.ask(to="0"), router.ask(to="1"))
        began = time.monotonic()
        assert isinstance(await refusal(router, seconds=0.2, to="0"), DeadlineExpired)
        assert 0.19 < time.monotonic() - began < 10
    assert [len(stub.asked) for stub in stubs] == [2, 1]


async def test_calls_sent_again_are_a_tenth_of_the_answered_and_a_few() -> None:
    async with stage(None, LOST, LOST) as (router, stubs):
        # Nobody is left alone, so that only the budget bounds what is sent again.
        router.directory.eject = lambda replicas: None  # type: ignore[method-assign]
        for _ in range(100):
            await router.ask(to="0")
        asked = len(stubs[0].asked)
        router.directory.forget("0")
        for number in range(60):
            await refusal(router, to="12"[number % 2])
        again = len(stubs[1].asked) + len(stubs[2].asked) - 60
    assert FIRST_BUDGET < again <= FIRST_BUDGET + EARNED * asked


async def test_what_is_under_way_is_counted_until_it_ends() -> None:
    async with stage(Takes(20)) as (router, _):
        option = router.directory.option("0")
        under_way = asyncio.create_task(refusal(router, seconds=0.3, to="0"))
        await asyncio.sleep(0)
        assert option.sent.seconds == option.per_text
        three = asyncio.create_task(refusal(router, seconds=0.3, to="0", texts=3))
        await asyncio.sleep(0)
        assert option.sent.seconds == pytest.approx(4 * option.per_text)
        assert option.sent.texts == 4
        await asyncio.gather(under_way, three)
        assert option.sent.seconds == pytest.approx(0.0)
        assert option.sent.texts == 0


@pytest.mark.parametrize("answer", [Takes(20), REFUSED, None])
async def test_other_workers_are_told_of_work_that_one_of_them_sends(answer: Step) -> None:
    async with stage(answer) as (router, (stub,)):
        option, told = router.directory.option("0"), list[float]()
        option.worker = cast("SeenLane", SimpleNamespace(add=told.append))
        with contextlib.suppress(Relayed, DeadlineExpired):
            await router.ask(seconds=0.3, to="0", texts=3)
        assert told == [3 * option.per_text, -3 * option.per_text]
        # It is not to be counted there once more.
        assert forwarded_context.read(stub.asked[0].metadata.items()).counted
        option.worker = None
        with contextlib.suppress(Relayed, DeadlineExpired):
            await router.ask(seconds=0.3, to="0")
        assert not forwarded_context.read(stub.asked[1].metadata.items()).counted


async def test_a_caller_that_leaves_takes_its_call_along() -> None:
    async with stage(Takes(20), None) as (router, (stub, _)):
        call = asyncio.create_task(router.ask(to="0"))
        await until(lambda: len(stub.asked) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: stub.left == 1)
        assert router.directory.option("0").sent.seconds == pytest.approx(0.0)
        assert not router.directory.ejected


async def test_a_replica_that_fails_again_and_again_is_left_alone() -> None:
    async with stage(Ends(grpc.StatusCode.INTERNAL), None) as (router, stubs):
        for _ in range(3):
            await refusal(router, to="0")
        assert router.directory.ejected == {"0"}
        for _ in range(10):
            await router.ask()
        assert [len(stub.asked) for stub in stubs] == [3, 10]
        assert router.counted("tandem_ejections_total", reason="failed") == 1
        # Its time is up after a while; it is asked again.
        await until(lambda: not router.directory.ejected)


async def test_half_of_the_replicas_are_asked_though_all_fail() -> None:
    async with stage(*[Ends(grpc.StatusCode.INTERNAL)] * 5) as (router, _):
        seen = set()
        for number in range(30):
            await refusal(router, to=str(number % 5))
            seen.add(len(router.directory.ejected))
        assert max(seen) == 2

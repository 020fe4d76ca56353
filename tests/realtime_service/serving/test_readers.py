"""The readers of the result of a deferred request: everyone, ticket holders, or its owner."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import redis.asyncio

from realtime_service.errors import NotFound
from realtime_service.identity import Identity
from realtime_service.serving.deferral import Deferral, Readers
from realtime_service.serving.request import ScoringRequest
from realtime_service.settings import ServiceSettings
from shared_model.clock import SystemClock
from shared_model.deferred import DeferredQueue, State
from shared_model.errors import AlreadyExists, BadInput
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
from shared_model.types import Priority

ALICE, BOB = (Identity(f"token:{name}", f"token:{name}", verified=True) for name in ("alice", "bob"))
SOMEONE = Identity("claimed:alice", "addr:10.0.0.7")

Make = Callable[[Readers], Deferral]


def request(text: str = "hello", request_id: str = "ticket-4711") -> ScoringRequest:
    return ScoringRequest((text,), (), Priority.UNSPECIFIED, None, 3, "", request_id, allow_deferred=True)


@pytest.fixture(scope="module")
def redis_server(private_redis: RedisServer) -> RedisServer:
    return private_redis


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator["redis.asyncio.Redis"]:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def make(client: "redis.asyncio.Redis") -> Make:
    return lambda readers: Deferral(DeferredQueue(client), lambda: True, readers, SystemClock())


async def reads(deferral: Deferral, caller: Identity, request_id: str = "ticket-4711", ticket: str = "") -> bool:
    """Whether GetResult and WatchResults, which must agree, find the request."""
    both = await asyncio.gather(
        deferral.result(caller, request_id, ticket),
        deferral.locate(caller, {request_id: ticket}),
        return_exceptions=True,
    )
    found, located = (not isinstance(it, NotFound) for it in both)
    assert found == located
    says = f"request_id: {request_id!r} was not submitted, or its result is no longer kept"
    assert found or {str(it) for it in both} == {says}
    return found


@pytest.mark.parametrize(
    ("settings", "readers"),
    [
        ({}, Readers.EVERYONE),
        ({"grpc_address": "[::1]:50051"}, Readers.EVERYONE),
        ({"grpc_address": "0.0.0.0:50051"}, Readers.TICKET_HOLDERS),
        ({"grpc_address": "10.0.0.7:50051"}, Readers.TICKET_HOLDERS),
        ({"auth": "required", "token_keys": "keys.pem"}, Readers.OWNER),
        ({"auth": "required", "token_keys": "keys.pem", "grpc_address": "0.0.0.0:1"}, Readers.OWNER),
    ],
)
def test_they_follow_from_the_settings(settings: dict[str, str], readers: Readers) -> None:
    assert Readers.of(ServiceSettings(**settings)) is readers  # type: ignore[arg-type]


async def test_two_owners_use_one_id_and_see_their_own(make: Make, client: "redis.asyncio.Redis") -> None:
    deferral = make(Readers.OWNER)
    assert (await deferral.accept(ALICE, request("hers"))).duplicate is False
    assert not await reads(deferral, BOB)
    assert (await deferral.accept(BOB, request("his"))).duplicate is False
    assert (await deferral.accept(ALICE, request("hers"))).duplicate is True
    with pytest.raises(AlreadyExists, match="request_id: 'ticket-4711' was submitted before"):
        await deferral.accept(ALICE, request("his"))
    assert await reads(deferral, ALICE)
    assert await reads(deferral, BOB)
    claimed = await DeferredQueue(client).claim("lane", 9)
    assert [(it.request_id, it.work.request.texts[0]) for it in claimed] == [
        ("token:alice/ticket-4711", "hers"),
        ("token:bob/ticket-4711", "his"),
    ]
    assert {it.work.request.request_id for it in claimed} == {"ticket-4711"}


async def test_beyond_loopback_a_result_needs_its_ticket(make: Make) -> None:
    deferral = make(Readers.TICKET_HOLDERS)
    ticket = (await deferral.accept(SOMEONE, request())).ticket
    # 128 bits in base64.
    assert len(ticket) == 22
    assert await reads(deferral, SOMEONE, ticket=ticket)
    for wrong in ("", ticket[:-1], ticket[:-1] + "é", ticket + "A", "A" * 22):
        assert not await reads(deferral, SOMEONE, ticket=wrong)
    refused = await deferral.accept_refused(SOMEONE, request(request_id=""), None)
    assert refused
    assert not await reads(deferral, SOMEONE, refused.request_id)
    assert await reads(deferral, SOMEONE, refused.request_id, refused.secret)


async def test_on_loopback_the_id_is_enough(make: Make) -> None:
    deferral = make(Readers.EVERYONE)
    ticket = (await deferral.accept(SOMEONE, request())).ticket
    assert await reads(deferral, BOB)
    # Another replica of the same Redis, which other hosts can call.
    assert not await reads(make(Readers.TICKET_HOLDERS), BOB)
    assert await reads(make(Readers.TICKET_HOLDERS), BOB, ticket=ticket)


@pytest.mark.parametrize("readers", Readers)
async def test_a_request_of_an_earlier_version_stays_readable_by_its_id(
    make: Make, client: "redis.asyncio.Redis", readers: Readers
) -> None:
    await client.hset(keys.deferred_item("ticket-4711"), mapping={"state": "expired", "entry": "1-1"})
    assert await reads(make(readers), ALICE)
    assert (await make(readers).result(ALICE, "ticket-4711", "")).state is State.EXPIRED


async def test_where_owners_read_a_ticket_opens_what_was_submitted_with_one(make: Make) -> None:
    ticket = (await make(Readers.TICKET_HOLDERS).accept(SOMEONE, request())).ticket
    assert not await reads(make(Readers.OWNER), ALICE)
    assert await reads(make(Readers.OWNER), ALICE, ticket=ticket)


@pytest.mark.parametrize("readers", Readers)
async def test_no_id_is_a_way_to_the_request_of_an_owner(make: Make, readers: Readers) -> None:
    await make(Readers.OWNER).accept(ALICE, request())
    deferral, forged = make(readers), "token:alice/ticket-4711"
    assert not await reads(deferral, BOB, forged)
    if readers is not Readers.OWNER:
        with pytest.raises(BadInput, match="request_id: begins like that of a verified caller"):
            await deferral.accept(BOB, request(request_id=forged))
        assert await deferral.accept_refused(BOB, request(request_id=forged), None) is None

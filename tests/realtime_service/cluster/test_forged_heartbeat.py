"""A real router, a real Redis and somebody who can write to it: texts go to holders of the cluster key only."""

import asyncio
import time
from pathlib import Path

import pytest

from realtime_service.client import AsyncClient
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings
from shared_model.trust import keyring
from shared_model.types import ServingPath
from tests.realtime_service.cluster.endpoint import serving
from tests.realtime_service.cluster.test_dead_endpoints import routed

pytestmark = pytest.mark.heavy

LANE = ServingPath.DYNAMIC
CALLS = 40


async def ask(address: str) -> None:
    async with AsyncClient(address) as client:
        for number in range(CALLS):
            await client.score(f"my secret {number}")


@pytest.mark.parametrize("key_of_its_own", [False, True])
async def test_a_router_ignores_a_forged_heartbeat(tmp_path: Path, key_of_its_own: bool) -> None:
    keyring.make(tmp_path / "keys", cluster=True, operator=False)
    keyring.make(tmp_path / "forged", cluster=True, operator=False)
    with RedisServer(StateSettings(state=tmp_path)) as own:
        state = StateSettings(state=tmp_path, redis_url=own.url)
        ours, theirs = (
            keyring.load(StateSettings(keys=str(tmp_path / it), redis_url=own.url)) for it in ("keys", "forged")
        )
        assert keyring.load(state) == ours
        async with routed(own.url, tmp_path) as (router, address), serving(own.url, LANE, keys=ours) as honest:
            assert router.stdout
            await asyncio.wait_for(router.stdout.readline(), 20)
            forged = theirs if key_of_its_own else keyring.WITHOUT_KEYS
            async with serving(own.url, LANE, keys=forged) as forger:
                log = await asyncio.wait_for(told(router, "the heartbeat of"), 10)
                await ask(address)
                assert (len(honest.asked), len(forger.asked)) == (CALLS, 0)
            assert f"'{forger.address}' {'has a wrong MAC' if key_of_its_own else 'is unsigned'}: it is ignored" in log


async def test_without_keys_replicas_find_each_other_as_before(tmp_path: Path) -> None:
    with RedisServer(StateSettings(state=tmp_path)) as own:
        async with (
            routed(own.url, tmp_path) as (router, address),
            serving(own.url, LANE) as one,
            serving(own.url, LANE) as other,
            AsyncClient(address) as client,
        ):
            assert router.stdout
            await asyncio.wait_for(router.stdout.readline(), 20)
            deadline = time.monotonic() + 20
            while not (one.asked and other.asked):
                await client.score("where is my card")
                assert time.monotonic() < deadline


async def told(router: asyncio.subprocess.Process, words: str) -> str:
    """The first line of the router's log with these words."""
    assert router.stderr
    async for line in router.stderr:
        if words in line.decode():
            return line.decode()
    raise AssertionError("the router ended")

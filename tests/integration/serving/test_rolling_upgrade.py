"""Processes of an earlier commit and of this one answer side by side while one replaces the other: no call is lost."""

import io
import subprocess
import tarfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import pytest
import redis

from realtime_service.client import Client, InvalidRequest
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.trust import keyring
from shared_model.types import DeferredState
from tests.conftest import REPOSITORY
from tests.integration.serving.conftest import Measured
from tests.integration.serving.fleet import Fleet, forwarded, takes_traffic
from tests.realtime_service.conftest import RunningService, eventually
from tests.realtime_service.rollout import tiny_releases
from tests.realtime_service.rollout.stage import Callers

#: A commit of main. Since then look-ups by id and HTTP came, and heartbeats tell figures of canaries.
EARLIER = "27fd57051ae753c9048a7e39c7698682f9bc15ae"
#: Requests that are submitted at each step.
SUBMITTED = 5


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the earlier code."""
    command = ["git", "archive", EARLIER, "protos", "shared_model", "realtime_service"]
    packed = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True)
    if packed.returncode:
        pytest.fail(f"this clone has no commit {EARLIER[:7]}, whose processes are upgraded: git fetch --unshallow")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    assert not (folder / "realtime_service/http").exists()
    return folder


@dataclass
class Deployment:
    """Routers, whose addresses callers know, and replicas, of one cluster key. A process that joins runs the code of
    `tree`."""

    fleet: Fleet
    tree: Path | None
    routers: list[RunningService]
    replicas: list[RunningService]
    submitted: int = 0

    @property
    def address(self) -> str:
        return ",".join(router.address for router in self.routers)

    def join(self, **environment: str) -> RunningService:
        return self.fleet.replica(self.tree, TANDEM_KEYS=str(self.fleet.folder / "keys"), **environment)

    def replace_replica(self, number: int) -> None:
        """One more, then one less."""
        joins, leaves = self.join(), self.replicas[number]
        eventually(takes_traffic(joins))
        assert leaves.stop() == 0
        self.replicas[number] = joins

    def replace_router(self, number: int) -> None:
        """At the address of the one that leaves."""
        leaves = self.routers[number]
        assert leaves.stop() == 0
        joins = self.join(TANDEM_LANES="none", TANDEM_GRPC_ADDRESS=leaves.address)
        eventually(lambda: forwarded(joins).get("answered"))
        self.routers[number] = joins

    def submit(self, client: Client) -> None:
        """And ask for what only the later code has: the earlier one says so."""
        for _ in range(SUBMITTED):
            with pytest.raises(InvalidRequest) as refused:
                client.lookup("message-1")
            assert refused.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND)
            client.submit(f"request-{self.submitted}", "where is my card")
            self.submitted += 1

    def start_canary(self) -> str:
        """Of nearly all callers: its replicas tell its figures in their heartbeats."""
        store = Store(self.fleet.folder / "releases")
        canary = tiny_releases.seal(store, "canary", 3).id
        with redis.Redis.from_url(self.fleet.redis.url) as client:
            pointer.start_canary(store, client, canary, 0.999)
        return canary


def answers_by(callers: Callers, release: str) -> bool:
    return any(it.release == release for it in callers.answers[-5:])


@pytest.fixture
def deployed(ours: Fleet, earlier: Path, replicas: int) -> Deployment:
    """Two routers and so many replicas of the earlier code."""
    keyring.make(ours.folder / "keys", cluster=True, operator=False)
    deployment = Deployment(ours, earlier, [], [])
    deployment.replicas = [deployment.join() for _ in range(replicas)]
    deployment.routers = [deployment.join(TANDEM_LANES="none") for _ in range(2)]
    return deployment


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("replicas", "routers", "back"),
    [(1, 1, False), pytest.param(2, 2, True, marks=pytest.mark.proof)],
    ids=["half", "whole, and back"],
)
def test_an_upgrade_loses_no_call(
    deployed: Deployment, earlier: Path, replicas: int, routers: int, back: bool, measured: Measured
) -> None:
    """`routers`: so many of the two are replaced; `back`: all are replaced again, by the earlier code."""
    with Callers(deployed.address, attempts=2) as callers, Client(deployed.address) as client:
        deployed.submit(client)
        canary = ""
        for tree in (None, earlier) if back else (None,):
            deployed.tree = tree
            for number in range(replicas):
                deployed.replace_replica(number)
                deployed.submit(client)
                canary = canary or deployed.start_canary()
                eventually(partial(answers_by, callers, canary), seconds=150)
            for number in range(routers):
                deployed.replace_router(number)
                deployed.submit(client)
    # Replicas take deferred requests when no others come.
    with Client(deployed.address) as client:
        ends = [it.state for it in client.watch([f"request-{it}" for it in range(deployed.submitted)])]
    calls = len(callers.answers) + len(callers.failed)
    measured(f"upgrade: calls of {calls} that failed", len(callers.failed), "0")
    assert callers.failed == []
    assert ends == [DeferredState.PUBLISHED] * deployed.submitted
    assert callers.releases == {deployed.fleet.release, canary}

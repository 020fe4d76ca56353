"""A text that kills the process that scores it costs two replicas at most, however many are behind the router."""

from pathlib import Path

import pytest

from realtime_service.client import Client, Unavailable
from tests.integration.serving.fleet import fleet, wait_until_routed_to
from tests.realtime_service.conftest import RunningService, eventually
from tests.realtime_service.rollout import tiny_releases


@pytest.mark.heavy
def test_a_text_that_kills_replicas_meets_two_of_them(tmp_path: Path) -> None:
    with fleet(tmp_path, seal=tiny_releases.seal_poisonable) as ours:
        router, *replicas = ours.start(routers=1, replicas=3)
        wait_until_routed_to(router, *replicas)
        with Client(router.address) as client:
            with pytest.raises(Unavailable):
                client.score(["my card please", tiny_releases.POISON])
            assert client.score("my card please").label == "label-0"
        # The call is over; a process that it killed may take a moment more to be gone.
        eventually(lambda: dead(replicas) >= 2)
        assert dead(replicas) == 2


def dead(replicas: list[RunningService]) -> int:
    return sum(it.process.poll() is not None for it in replicas)

"""A stage for each module, and a client of its replica."""

from collections.abc import Iterator

import pytest

from realtime_service.client import Client
from tests.realtime_service.rollout.stage import Stage, staged


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage")) as made:
        yield made


@pytest.fixture
def client(stage: Stage) -> Iterator[Client]:
    with Client(stage.replica.address) as connected:
        yield connected

"""The release that a replica keeps loaded for a rollback, and for how long, on a simulated clock."""

import asyncio
from typing import Any, cast

import pytest

from realtime_service.models.registry import Model, Models
from realtime_service.rollout.desired_release import DesiredReleases
from realtime_service.rollout.loader import Loader
from realtime_service.rollout.rollout import Rollout
from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import SimulatedClock
from shared_model.encoding import Encoder, InputSpec
from shared_model.heads import Heads
from shared_model.output import OutputKind, OutputSpec
from shared_model.releases.pointer import Pointer
from tests.realtime_service.rollout import tiny_releases

KEEP = 600.0


def model(release: str) -> Model:
    heads = Heads.of(OutputSpec(OutputKind.EMBEDDING, (), 2))
    return Model(release, heads, Encoder(tiny_releases.tokenizer(), InputSpec(8), "any"), {})


class Replica:
    """A rollout whose loads end at once, with the releases that it has loaded and closed."""

    def __init__(self, keep_seconds: float) -> None:
        self.loads: list[str] = []
        self.closed: list[str] = []
        self.clock = SimulatedClock()
        self.models = Models.of(model("a"))
        self.pointer = Pointer(1, "a")
        self.others: dict[str, Pointer] = {}
        self._rollout = Rollout(
            self.models,
            cast(DesiredReleases, self),
            cast(Loader, self),
            Metrics(()),
            self.clock,
            keep_seconds,
        )

    async def newest(self) -> Pointer:
        return self.pointer

    async def load(self, release: str) -> Model:
        self.loads.append(release)
        return model(release)

    async def retire(self, model: Model) -> None:
        self.closed.append(model.release)

    async def follow(self, active: str, previous: str = "", canary: str = "") -> None:
        """Move the pointer, and follow it to the end."""
        self.pointer = Pointer(self.pointer.version + 1, active, previous, canary, 0.1 if canary else 0.0)
        await self.look()

    async def look(self) -> None:
        for _ in range(4):
            await self._rollout.run_once()
            for _ in range(3):
                await asyncio.sleep(0)

    @property
    def kept(self) -> str:
        return next(iter(self.models.kept), "")


@pytest.fixture
def replica() -> Replica:
    return Replica(KEEP)


async def test_a_rollback_within_the_time_loads_nothing(replica: Replica) -> None:
    await replica.follow("b", previous="a")
    assert (replica.models.serving.active, replica.kept, replica.closed) == ("b", "a", [])
    assert set(replica.models.serving.models) == {"b"}
    replica.clock.advance(KEEP - 1)
    await replica.follow("a")
    assert (replica.models.serving.active, replica.loads) == ("a", ["b"])
    # The release that was rolled back is not kept.
    assert (replica.kept, replica.closed) == ("", ["b"])


async def test_after_the_time_it_is_closed_and_a_rollback_loads_it(replica: Replica) -> None:
    await replica.follow("b", previous="a")
    replica.clock.advance(KEEP)
    await replica.look()
    assert (replica.kept, replica.closed) == ("", ["a"])
    await replica.follow("a")
    assert (replica.models.serving.active, replica.loads) == ("a", ["b", "a"])


async def test_the_time_begins_with_the_replacement(replica: Replica) -> None:
    await replica.follow("b", previous="a")
    replica.clock.advance(KEEP - 1)
    await replica.follow("c", previous="b")
    assert (replica.kept, replica.closed) == ("b", ["a"])
    replica.clock.advance(KEEP - 1)
    await replica.look()
    assert replica.kept == "b"


async def test_a_load_retires_the_kept_release(replica: Replica) -> None:
    await replica.follow("b", previous="a")
    await replica.follow("b", previous="a", canary="c")
    assert (set(replica.models.serving.models), replica.kept, replica.closed) == ({"b", "c"}, "", ["a"])


async def test_without_a_time_no_release_is_kept() -> None:
    replica = Replica(0.0)
    await replica.follow("b", previous="a")
    assert (replica.kept, replica.closed) == ("", ["a"])


async def test_published_scores_of_the_kept_release_are_followed(replica: Replica) -> None:
    await replica.follow("b", previous="a")
    scores: Any = object()
    object.__setattr__(replica.models.loaded["a"], "precomputed", scores)
    assert replica.models.published() == [scores]

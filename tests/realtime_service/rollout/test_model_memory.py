"""Several models in too little memory, on a simulated clock: the least recently used idle one makes room."""

import asyncio
from typing import cast

import pytest

from realtime_service.errors import Unfit, UnfitRelease
from realtime_service.models.registry import Model, Models
from realtime_service.rollout.desired_release import DesiredReleases
from realtime_service.rollout.loader import Loader
from realtime_service.rollout.plan import Failure
from realtime_service.rollout.residency import Residency
from realtime_service.rollout.rollout import SETTLED_SECONDS, Rollout
from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import SimulatedClock
from shared_model.releases.pointer import Pointer
from tests.realtime_service.rollout.test_keeping import model

#: Seconds of a load.
LOAD = 2.0
IDS = {name: f"{name}-aaaaaaaaaaaa" for name in ("main", "one", "two")}


class Replica:
    """A replica with room for one model beside the default one."""

    def __init__(self, most: float = 1.0) -> None:
        self.loads: list[str] = []
        self.closed: list[str] = []
        self.ending: list[tuple[float, asyncio.Event]] = []
        self.clock = SimulatedClock()
        self.models = Models.of(model(IDS["main"]))
        self.default = Pointer(1, IDS["main"])
        self.others = {name: Pointer(1, IDS[name]) for name in ("one", "two")}
        self._rollout = Rollout(
            self.models,
            cast(DesiredReleases, self),
            cast(Loader, self),
            Metrics(()),
            self.clock,
            0.0,
            Residency(None, most),
        )

    async def newest(self) -> Pointer:
        return self.default

    async def size_of(self, release: str) -> int:
        return 1

    async def load(self, release: str) -> Model:
        self.loads.append(release)
        done = asyncio.Event()
        self.ending.append((self.clock.monotonic() + LOAD, done))
        await done.wait()
        return model(release)

    @property
    def failures(self) -> dict[str, Failure]:
        return self._rollout.failures

    async def retire(self, model: Model) -> None:
        self.closed.append(model.release)

    async def look(self, seconds: float = 0.0) -> None:
        for _ in range(1 + round(seconds / 0.1)):
            for _, done in (it for it in self.ending if it[0] <= self.clock.monotonic()):
                done.set()
            await asyncio.sleep(0)
            await self._rollout.run_once()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.clock.advance(0.1)

    def ask(self, name: str) -> bool:
        """Whether a call for a model would be answered."""
        self.clock.advance(0.001)
        self.models.used[name] = self.clock.monotonic()
        return IDS[name] in self.models.serving.models


@pytest.fixture
def replica() -> Replica:
    return Replica()


async def test_a_model_that_is_asked_for_takes_the_place_of_the_idle_one(replica: Replica) -> None:
    await replica.look(LOAD + 1)
    assert (replica.ask("one"), replica.ask("two")) == (True, False)
    assert (replica.models.loads, replica.models.on_demand) == ({"one", "two"}, {"two"})
    await replica.look(SETTLED_SECONDS + LOAD + 1)
    assert (replica.ask("two"), replica.closed, replica.models.on_demand) == (True, [IDS["one"]], {"one"})
    assert replica.models.serving.active == IDS["main"]


async def test_a_model_with_calls_in_flight_stays(replica: Replica) -> None:
    await replica.look(LOAD + 1)
    replica.ask("one")
    with replica.models.serving.models[IDS["one"]].leases:
        replica.ask("two")
        await replica.look(SETTLED_SECONDS + LOAD + 1)
        assert (replica.loads, replica.closed) == ([IDS["one"]], [])
    await replica.look(LOAD + 1)
    assert replica.closed == [IDS["one"]]
    assert replica.ask("two")


async def test_two_models_that_are_asked_in_turn_are_both_answered(replica: Replica) -> None:
    """They do not cancel each other's loads for ever."""
    answered = {"one": 0, "two": 0}
    for _ in range(300):
        for name in answered:
            answered[name] += replica.ask(name)
            await replica.look()
    assert min(answered.values()) > 50
    # Each stays for a while once it is loaded.
    assert len(replica.loads) <= 60 / SETTLED_SECONDS + 1


async def test_with_room_for_both_neither_makes_room() -> None:
    replica = Replica(2.0)
    await replica.look(2 * LOAD + 1)
    assert (replica.ask("one"), replica.ask("two"), replica.closed) == (True, True, [])


async def test_the_default_moves_without_a_load_and_the_former_one_goes_on() -> None:
    replica = Replica(3.0)
    await replica.look(2 * LOAD + 1)
    # As `promote --default` moves it.
    replica.default = Pointer(2, IDS["two"], previous=IDS["main"])
    replica.others["main"] = Pointer(1, IDS["main"])
    loads = list(replica.loads)
    await replica.look()
    serving = replica.models.serving
    assert (serving.active, serving.choose("", None), serving.choose("", None, "main")) == (
        IDS["two"],
        IDS["two"],
        IDS["main"],
    )
    assert serving.models.keys() == set(IDS.values())
    await replica.look(SETTLED_SECONDS)
    assert (replica.loads, replica.closed) == (loads, [])


async def test_a_model_that_cannot_be_loaded_is_refused_and_the_others_go_on() -> None:
    replica = Replica(2.0)

    async def load(release: str) -> Model:
        raise UnfitRelease(Unfit.CRASHED, "its probe was ended by SIGSEGV")

    replica.load = load  # type: ignore[method-assign]
    await replica.look(1.0)
    assert (replica.models.loads, replica.models.serving.active) == (frozenset(), IDS["main"])
    assert {it.model for it in replica.failures.values()} == {"one", "two"}
    # Each new version of its own pointer tries again, and no other's.
    replica.others["one"] = Pointer(2, IDS["one"])
    del replica.load  # type: ignore[method-assign]
    await replica.look(LOAD + 1)
    assert (replica.loads, {it.model for it in replica.failures.values()}) == ([IDS["one"]], {"two"})

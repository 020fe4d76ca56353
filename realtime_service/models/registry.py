"""The loaded releases, and which of them answers a caller."""

import asyncio
import hashlib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property

from realtime_service.models.latency_budgets import Timing
from realtime_service.models.precomputed import PrecomputedScores
from realtime_service.models.result_encoder import ResultEncoder
from realtime_service.models.statistics import Statistics
from realtime_service.models.warmup import WarmVariant
from realtime_service.routing.policy import release_for
from shared_model.encoding import Encoder
from shared_model.errors import BadInput, UnknownRelease
from shared_model.heads import Heads
from shared_model.output import OutputSpec
from shared_model.releases.pointers import name_of
from shared_model.types import Precision


class Leases:
    """Counts the requests that use a model: each enters this context."""

    def __init__(self) -> None:
        self._held = 0
        self._none = asyncio.Event()
        self._none.set()

    def __enter__(self) -> None:
        self._held += 1
        self._none.clear()

    def __exit__(self, *exc: object) -> None:
        self._held -= 1
        if not self._held:
            self._none.set()

    @property
    def held(self) -> bool:
        return self._held > 0

    async def returned(self) -> None:
        """Wait until no request uses the model."""
        await self._none.wait()


@dataclass(frozen=True, eq=False)
class Model:
    """One loaded release. `engines` grows while the process starts: a lane without its variant does not answer yet.
    `precomputed`: None if published scores are not used. `timings`: of the variants that were timed here."""

    release: str
    heads: Heads
    encoder: Encoder
    engines: MutableMapping[Precision, WarmVariant]
    precomputed: PrecomputedScores | None = None
    leases: Leases = field(default_factory=Leases)
    statistics: Statistics = field(default_factory=Statistics)
    timings: MutableMapping[Precision, Timing] = field(default_factory=dict)

    @cached_property
    def result_encoder(self) -> ResultEncoder:
        return ResultEncoder(self.heads)

    @property
    def output(self) -> OutputSpec:
        """That of the first head."""
        return self.heads.first.output

    def close(self) -> None:
        """Free the engines, once no request uses the model and no batch runs on it."""
        for variant in self.engines.values():
            variant.close()


@dataclass(frozen=True)
class Roles:
    """The releases that answer for one model name, loaded or not. `weight`: the canary's share of callers."""

    active: str
    canary: str = ""
    weight: float = 0.0

    def choose(self, caller: str | None) -> str:
        """The release that should answer: see `policy.release_for`. `caller`: None for never the canary."""
        if not self.canary or caller is None:
            return self.active
        return release_for("", self.active, self.canary, self.weight, _draw(caller, self.canary))


@dataclass(frozen=True)
class Serving:
    """The releases that answer, as one value. `models`: those loaded, by id; `active`, `canary` and its share `weight`:
    of the default model; `others`: those of the other models, by name."""

    models: Mapping[str, Model]
    active: str
    canary: str = ""
    weight: float = 0.0
    others: Mapping[str, Roles] = field(default_factory=dict)

    @cached_property
    def default(self) -> Roles:
        return Roles(self.active, self.canary, self.weight)

    @cached_property
    def default_name(self) -> str:
        return name_of(self.active)

    @property
    def by_name(self) -> dict[str, Roles]:
        """The roles of all models, the default one first."""
        return {self.default_name: self.default, **self.others}

    def other(self, name: str) -> str:
        """The name of a model that is not the default one; "" for the default one and for unknown names."""
        return name if name in self.others else ""

    def roles(self, name: str) -> Roles:
        """Those of a model; "" is the default one. Raises: UnknownRelease for an unknown name."""
        if not name or name == self.default_name:
            return self.default
        if found := self.others.get(name):
            return found
        known = ", ".join(filter(None, self.by_name))
        raise UnknownRelease(f"model: {name!r} is not served; there are: {known or 'none yet'}")

    def choose(self, pinned: str, caller: str | None, name: str = "") -> str:
        """The release that should answer, loaded or not; `name`: of the model. Raises: UnknownRelease for an unknown
        name; BadInput for a pinned release of another model."""
        roles = self.roles(name)
        if not pinned:
            return roles.choose(caller)
        if not self.answers(pinned, name) and name_of(pinned) in self.by_name:
            asked = name or self.default_name
            raise BadInput("release", f"{pinned!r} is of model {name_of(pinned)}, the request is for {asked}")
        return pinned

    def answers(self, release: str, name: str) -> bool:
        """Whether a release is one of a model; the default model's pointer may name releases of any name."""
        roles = self.roles(name)
        return release in (roles.active, roles.canary) or name_of(release) == (name or self.default_name)

    def pick(self, pinned: str, caller: str | None, name: str = "") -> Model:
        """The model that should answer. Raises: as `choose`; UnknownRelease if its release is not loaded."""
        chosen = self.choose(pinned, caller, name)
        if chosen not in self.models:
            raise unknown(chosen, self.active)
        return self.models[chosen]


class Models:
    """The releases of this process. A request reads `serving` once; a switch replaces it whole. `kept`: by release,
    loaded for a rollback, without answering. Of other models than the default one, `used`: monotonic seconds of the
    last call; `loads`: those that this process has or loads; `on_demand`: of them, those that it loads when asked.

    A process without lanes has no model and knows only which release answers.
    """

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.kept: dict[str, Model] = {}
        self.used: dict[str, float] = {}
        self.loads: frozenset[str] = frozenset()
        self.on_demand: frozenset[str] = frozenset()

    @staticmethod
    def of(first: Model) -> "Models":
        return Models(Serving({first.release: first}, first.release))

    @property
    def active(self) -> Model:
        return self.serving.models[self.serving.active]

    @property
    def loaded(self) -> dict[str, Model]:
        """All models by release, `kept` included."""
        return {**self.serving.models, **self.kept}

    def published(self) -> list[PrecomputedScores]:
        """The published scores of all loaded releases: those of a kept one stay fresh for a rollback."""
        return [model.precomputed for model in self.loaded.values() if model.precomputed]


def unknown(release: str, active: str) -> UnknownRelease:
    return UnknownRelease(f"release: {release!r} is not served here; this is {active or 'nothing yet'}")


def _draw(caller: str, canary: str) -> float:
    """Hash a caller to [0, 1). It includes the canary, so that each canary starts with other callers."""
    digest = hashlib.blake2b(f"{canary}\0{caller}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64

"""The loaded releases, and which of them answers a caller."""

import asyncio
import hashlib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field

from realtime_service.models.latency_budgets import Timing
from realtime_service.models.precomputed import PrecomputedScores
from realtime_service.models.statistics import Statistics
from realtime_service.models.warmup import WarmVariant
from realtime_service.routing.policy import release_for
from shared_model.encoding import Encoder
from shared_model.errors import UnknownRelease
from shared_model.heads import Heads
from shared_model.output import OutputSpec
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

    @property
    def output(self) -> OutputSpec:
        """That of the first head."""
        return self.heads.first.output

    def close(self) -> None:
        """Free the engines, once no request uses the model and no batch runs on it."""
        for variant in self.engines.values():
            variant.close()


@dataclass(frozen=True)
class Serving:
    """The releases that answer, as one value. `models`: those loaded, by id; `weight`: the canary's share."""

    models: Mapping[str, Model]
    active: str
    canary: str = ""
    weight: float = 0.0

    def choose(self, pinned: str, caller: str | None) -> str:
        """The release that should answer, loaded or not: see `policy.release_for`. `caller`: None for never the
        canary."""
        if pinned or not self.canary or caller is None:
            return pinned or self.active
        return release_for(pinned, self.active, self.canary, self.weight, _draw(caller, self.canary))

    def pick(self, pinned: str, caller: str | None) -> Model:
        """The model that should answer. Raises: UnknownRelease if the pinned release is not loaded."""
        if pinned and pinned not in self.models:
            raise unknown(pinned, self.active)
        return self.models[self.choose(pinned, caller)]


class Models:
    """The releases of this process. A request reads `serving` once; a switch replaces it whole. `kept`: loaded for a
    rollback, without answering.

    A process without lanes has no model and knows only which release answers.
    """

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.kept: Model | None = None

    @staticmethod
    def of(first: Model) -> "Models":
        return Models(Serving({first.release: first}, first.release))

    @property
    def active(self) -> Model:
        return self.serving.models[self.serving.active]

    @property
    def loaded(self) -> dict[str, Model]:
        """All models by release, `kept` included."""
        kept = {self.kept.release: self.kept} if self.kept else {}
        return {**self.serving.models, **kept}

    def published(self) -> list[PrecomputedScores]:
        """The published scores of all loaded releases: those of a kept one stay fresh for a rollback."""
        return [model.precomputed for model in self.loaded.values() if model.precomputed]


def unknown(release: str, active: str) -> UnknownRelease:
    return UnknownRelease(f"release: {release!r} is not served here; this is {active or 'nothing yet'}")


def _draw(caller: str, canary: str) -> float:
    """Hash a caller to [0, 1). It includes the canary, so that each canary starts with other callers."""
    digest = hashlib.blake2b(f"{canary}\0{caller}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64

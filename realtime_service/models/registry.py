"""The releases this process has loaded, and which of them answers whom."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field

from realtime_service.models.precomputed import PrecomputedScores
from realtime_service.models.statistics import Statistics
from realtime_service.models.warmup import WarmVariant
from realtime_service.routing.policy import release_for
from shared_model.encoding import Encoder
from shared_model.errors import UnknownRelease
from shared_model.output import OutputSpec
from shared_model.types import Precision


class Leases:
    """How many requests hold a model now: each does, as long as it is inside this context."""

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
        """Wait until nobody holds it."""
        await self._none.wait()


@dataclass(frozen=True, eq=False)
class Model:
    """All that one release means to this process. `engines` grows while the process starts: a lane without its variant
    does not answer yet. `precomputed` is None where published scores are not used."""

    release: str
    output: OutputSpec
    encoder: Encoder
    engines: MutableMapping[Precision, WarmVariant]
    precomputed: PrecomputedScores | None = None
    leases: Leases = field(default_factory=Leases)
    statistics: Statistics = field(default_factory=Statistics)

    def close(self) -> None:
        """Free its engines. Nobody may hold it or compute on it any more."""
        for variant in self.engines.values():
            variant.close()


@dataclass(frozen=True)
class Serving:
    """Who is answered by which release, as one value. `models`: those loaded, by id; `weight`: the canary's share."""

    models: Mapping[str, Model]
    active: str
    canary: str = ""
    weight: float = 0.0

    def choose(self, pinned: str, caller: Callable[[], str] | None) -> str:
        """Which release is to answer, loaded or not: see `policy.release_for`.

        `caller` tells who asks, and is called only where that matters: while there is a canary. None never meets the
        canary.
        """
        if pinned or not self.canary or caller is None:
            return pinned or self.active
        return release_for(pinned, self.active, self.canary, self.weight, _draw(caller(), self.canary))

    def pick(self, pinned: str, caller: Callable[[], str] | None) -> Model:
        """The model that is to answer. Raises: UnknownRelease when the pinned release is not loaded."""
        if pinned and pinned not in self.models:
            raise unknown(pinned, self.active)
        return self.models[self.choose(pinned, caller)]


class Models:
    """Holds what is served now. A request reads `serving` once; a switch replaces it whole. `kept`: loaded for a
    rollback, answers nothing.

    A process without lanes has none loaded and knows only which release answers.
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
        """By release, whether it answers or is kept."""
        kept = {self.kept.release: self.kept} if self.kept else {}
        return {**self.serving.models, **kept}

    def published(self) -> list[PrecomputedScores]:
        """The published scores of what is loaded: a kept release answers with those of today when it returns."""
        return [model.precomputed for model in self.loaded.values() if model.precomputed]


def unknown(release: str, active: str) -> UnknownRelease:
    return UnknownRelease(f"release: {release!r} is not served here; this is {active or 'nothing yet'}")


def _draw(caller: str, canary: str) -> float:
    """A number in [0, 1) that is the caller's for this canary. Another canary meets other callers first."""
    digest = hashlib.blake2b(f"{canary}\0{caller}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64

"""The stage of a benchmark: a state with its days of messages, and processes that are started on demand."""

import contextlib
import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from shared_model import devices
from shared_model.settings import StateSettings
from tests.benchmarks.nightly import corpus
from tests.benchmarks.nightly.corpus import Corpus
from tests.benchmarks.replicas import Place
from tests.load.child import Child

#: Days by what they hold: texts to warm up with, of most shapes; the sample that ratios are measured on; all texts.
WARM, SAMPLE, WHOLE = "2026-01-01", "2026-01-02", "2026-01-03"
#: An engine builds each of its shapes when it first meets it, and meets most of them in this many rows.
_WARM_ROWS = 16_384
#: Rows after which lazy loading and building is complete.
_FIRST_ROWS = 512

Say = Callable[[str], None]
T = TypeVar("T")


@dataclass
class Notes:
    """Other facts that a reader needs: name → its value in each round, and notes."""

    values: dict[str, list[float]] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(round(value, 4))


class Stage:
    """Use as a context. `rows`: of the sample."""

    def __init__(self, place: Place, material: Corpus, rows: int, notes: Notes, say: Say) -> None:
        self.place = place
        self.sample = material.texts[:rows]
        self.notes = notes
        self._material = material
        self._say = say
        self._stack = contextlib.ExitStack()
        self._warmed = set[str]()

    def __enter__(self) -> "Stage":
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-bench-")))
        self.state = StateSettings(state=folder, releases=self.place.store.files.root, redis_url=self.place.redis_url)
        corpus.write_day(self.state.messages_dir, WARM, self._material.texts[-_WARM_ROWS:])
        corpus.write_day(self.state.messages_dir, SAMPLE, self.sample)
        corpus.write_day(self.state.messages_dir, WHOLE, self._material.texts)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    @functools.cached_property
    def cores(self) -> int:
        return devices.cores()

    @functools.cached_property
    def night(self) -> Child:
        """The nightly run with a slot for each core."""
        return self._child(*self.night_command(self.cores))

    @functools.cached_property
    def bare(self) -> Child:
        return self._child("tests.benchmarks.nightly.bare", str(self.place.store.files.root), self.place.first)

    @functools.cached_property
    def frame(self) -> Child:
        """A pandas frame on all cores, without Spark."""
        return self._child("tests.benchmarks.nightly.frame", self.place.store.open(self.place.first).place)

    @functools.cached_property
    def stock(self) -> Child:
        return self._child("tests.benchmarks.nightly.stock")

    @functools.cached_property
    def sentences(self) -> Child:
        return self._child("tests.benchmarks.nightly.sentences")

    def night_command(self, slots: int) -> tuple[str, ...]:
        """Module and arguments of a nightly run with so many slots."""
        where = str(self.state.state), self.state.releases_root, self.state.redis_url
        return "tests.benchmarks.nightly.night", f"local[{slots}]", *where

    def score(self, night: Child, name: str, **options: bool) -> dict[str, Any]:
        """Score the sample, every row on its own. Engines are warm: Spark ends those that were idle for a minute."""
        night.ask(ds=WARM, **options)
        done = night.ask(ds=SAMPLE, deduplicate=False, **options)
        self.measured(f"{name}, rows/s", done["rows_per_second"])
        return done

    def bare_rates(self, name: str, between: Callable[[], T], **options: bool) -> tuple[T, float]:
        """What `between` gives, and rows/s of the bare engine on the sample: the mean of before and after. Warm by the
        same texts as the nightly run, once: it keeps its engines."""
        self.warm(self.bare, name, **options)
        before = self._rate(self.bare, name, **options)
        given = between()
        return given, (before + self._rate(self.bare, name, **options)) / 2

    def warm(self, child: Child, name: str, **options: bool) -> None:
        """Have it meet most shapes, once."""
        if name not in self._warmed:
            child.ask(texts=self._material.texts[-_WARM_ROWS:], **options)
            self._warmed.add(name)

    def rate(self, child: Child, name: str, **options: Any) -> float:
        """rows/s of a baseline on the sample, without its warm-up."""
        child.ask(texts=self._material.texts[-_FIRST_ROWS:], **options)
        return self._rate(child, name, **options)

    def _rate(self, child: Child, name: str, **options: Any) -> float:
        return self.measured(f"{name}, rows/s", child.ask(texts=self.sample, **options)["rows_per_second"])

    def measured(self, name: str, value: float) -> float:
        """Say and keep a number on which figures rest."""
        self._say(f"  {name}: {value:.4g}")
        self.notes.add(name, value)
        return value

    def another_night(self, slots: int, *priority: str) -> contextlib.AbstractContextManager[Child]:
        """One that ends before the stage does. `priority`: "idle", or none."""
        return Child(*self.night_command(slots), *priority)

    def _child(self, module: str, *arguments: str) -> Child:
        return self._stack.enter_context(Child(module, *arguments))

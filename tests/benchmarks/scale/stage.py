"""The stage of `bench_scale`: an object store with latency, a cluster of separate processes, days of distinct texts."""

import contextlib
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from shared_model.objects import open_objects
from shared_model.settings import StateSettings
from tests import object_store
from tests.batch_job import cluster
from tests.benchmarks import rounds
from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.nightly.corpus import Corpus
from tests.benchmarks.replicas import Place
from tests.benchmarks.scale import sleeping, usage
from tests.load.child import Child

#: Two workers of one core each: every slot is in a process of its own.
HOSTS = ("127.0.0.1", "127.0.0.2")
LATENCY_SECONDS = 0.01
#: Lines of one file of messages.
_FILE_LINES = 50_000
_POLL_SECONDS, _END_SECONDS = 0.2, 60.0


@dataclass(frozen=True)
class Stage:
    """`texts`: made distinct by a suffix as often as a day needs. `counts`: see `sleeping.COUNTS`."""

    place: Place
    material: Corpus
    rows: int
    state: StateSettings
    master: str
    counts: Path
    notes: dict[str, Any]

    def note(self, name: str, value: Any) -> None:
        """Keep and say what figures rest on: a benchmark of hours may be cut off."""
        self.notes[name] = value
        rounds.say(f"  {name}: {json.dumps(value)}")

    @contextlib.contextmanager
    def nights(self) -> Iterator[Child]:
        """A driver that is warm."""
        self.write_day(_WARM, _WARM_ROWS)
        with self._driver() as child:
            child.ask(ds=_WARM)
            yield child

    def write_day(self, ds: str, rows: int) -> None:
        texts = (f"{text} {number}" for number, text in enumerate(itertools.cycle(self.material.texts)))
        files = open_objects(self.state.messages_dir)
        for first in range(0, rows, _FILE_LINES):
            numbered = enumerate(itertools.islice(texts, min(_FILE_LINES, rows - first)), first)
            lines = (json.dumps({"id": f"m{number:08d}", "text": text}) + "\n" for number, text in numbered)
            files.put(f"ds={ds}/part-{first:08d}.jsonl", "".join(lines).encode())

    def kill_at(self, ds: str, rows: int) -> int:
        """Kill a driver, Python and JVM, once engines have run so many rows of a day; how many they had run when the
        executors, too, had ended."""
        before = sleeping.rows_run(self.counts)
        child = self._driver()
        child.send(ds=ds)
        while sleeping.rows_run(self.counts) - before < rows:
            if not psutil.pid_exists(child.pid) or psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE:
                raise CannotMeasure("the night ended before it could be killed; its last lines say why")
            time.sleep(_POLL_SECONDS)
        driver = psutil.Process(child.pid)
        family = [driver, *driver.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=_END_SECONDS)
        self._await_executors()
        return sleeping.rows_run(self.counts) - before

    def _await_executors(self) -> None:
        """Wait until those of a driver that was killed have ended: they may finish a shard meanwhile."""
        deadline = time.monotonic() + _END_SECONDS
        while any(it.kind in usage.EXECUTORS for it in usage.look()):
            if time.monotonic() > deadline:
                raise CannotMeasure(f"executors have outlived their driver by {_END_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)

    def _driver(self) -> Child:
        state = self.state
        where = str(state.state), str(state.store), state.releases_root, state.redis_url
        return Child("tests.benchmarks.scale.night", self.master, *map(str, where))


_WARM, _WARM_ROWS = "2026-01-01", 2_000


@contextlib.contextmanager
def opened(place: Place, material: Corpus, rows: int) -> Iterator[Stage]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-bench-")))
        counts = folder / "counts"
        counts.mkdir()
        proxy = stack.enter_context(object_store.s3("tandem"))
        environment = cluster.environment({**proxy.environment(), sleeping.COUNTS: str(counts)})
        # Executors run for long: their JVMs compile as those of any cluster do.
        del environment["JAVA_TOOL_OPTIONS"]
        os.environ.update(environment)
        object_store.reconnect()
        proxy.delay(LATENCY_SECONDS)
        state = StateSettings(
            state=folder / "state",
            store="s3://tandem/state",
            releases=place.store.files.root,
            redis_url=place.redis_url,
        )
        master = stack.enter_context(cluster.standalone(os.environ, folder, HOSTS, cores=1))
        yield Stage(place, material, rows, state, master, counts, {})

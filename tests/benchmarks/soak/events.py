"""Events of hours: reloads, rotated certificates, nights. Each has a period of its own."""

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from shared_model import demo_messages
from shared_model.releases import pointer
from tests.benchmarks.harness import REPOSITORY
from tests.benchmarks.replicas import Place
from tests.certified import Certified

#: Seconds.
RELOAD_SECONDS, ROTATE_SECONDS, NIGHT_SECONDS = 60.0, 90.0, 240.0
MESSAGES = 200
STEPS = ("plan", "score", "publish", "report")


class Nights:
    """Each call scores the next day, by the commands that Airflow runs. `log` has their output."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.log = folder / "nights.log"
        self._environment = {
            **os.environ,
            "REDIS_URL": place.redis_url,
            "TANDEM_STATE": str(folder),
            "TANDEM_RELEASES": str(place.store.files.root),
            "TANDEM_NIGHTLY_IDLE": "true",
        }
        self._messages = folder / "messages"
        self._count = 0

    def run(self) -> None:
        """Raises: CalledProcessError."""
        day = demo_messages.FIRST_DAY + timedelta(days=self._count)
        self._count += 1
        demo_messages.write_archive(self._messages, MESSAGES, days=1, damaged=False, first_day=day, seed=self._count)
        with self.log.open("ab") as log:
            for step in STEPS:
                command = [sys.executable, "-m", "batch_job", step, "--ds", str(day)]
                subprocess.run(command, cwd=REPOSITORY, env=self._environment, stdout=log, stderr=log, check=True)


def reloads(place: Place) -> Callable[[], None]:
    """Each call gives the other release to all callers: promoted, then rolled back."""
    turn = [True]

    def reload() -> None:
        if turn[0]:
            pointer.promote(place.store, place.client, place.second)
        else:
            pointer.rollback(place.store, place.client)
        turn[0] = not turn[0]

    return reload


@contextmanager
def happening(place: Place, certificates: Certified, folder: Path) -> Iterator[Counter[str]]:
    """How often each event has happened, and how often one has failed, as "failed NAME"."""
    happened: Counter[str] = Counter()
    over = threading.Event()
    events = {
        "reload": (RELOAD_SECONDS, reloads(place)),
        "rotation": (ROTATE_SECONDS, certificates.renew),
        "night": (NIGHT_SECONDS, Nights(place, folder).run),
    }

    def repeat(name: str, seconds: float, event: Callable[[], object]) -> None:
        while not over.wait(seconds):
            try:
                event()
                happened[name] += 1
            except Exception as error:  # noqa: BLE001 - it is counted and told, and the others go on
                happened[f"failed {name}"] += 1
                print(f"{name}: {error}", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=repeat, args=(name, *event)) for name, event in events.items()]
    for thread in threads:
        thread.start()
    try:
        yield happened
    finally:
        over.set()
        for thread in threads:
            thread.join()

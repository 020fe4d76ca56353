"""Deferred requests acknowledged a second, over one stream, by a replica that does not answer them meanwhile."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

from realtime_service.client import CallError, Client
from shared_model import demo_messages
from tests.benchmarks import replicas
from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.replicas import Place

SUBMISSIONS = 20_000


def measure(place: Place) -> dict[str, float]:
    """Raises: CannotMeasure where one was not stored, or where the service takes no stream of them."""
    submit: Callable[[Client, Iterator[tuple[str, str]]], Any] | None = getattr(Client, "submit_stream", None)
    if submit is None:
        raise CannotMeasure("this client hands in work one by one only")
    texts = demo_messages.texts(seed=8)
    work = [(f"work-{number}", text) for number, text in enumerate(itertools.islice(texts, SUBMISSIONS))]
    with replicas.replica(place, TANDEM_HARVEST="false") as replica, Client(replica.address) as client:
        began = time.monotonic()
        stored = [told for _, told in submit(client, iter(work)) if not isinstance(told, CallError)]
        took = time.monotonic() - began
    if len(stored) < SUBMISSIONS:
        raise CannotMeasure(f"{len(stored)} of {SUBMISSIONS} submissions were stored")
    return {"submit_per_s": SUBMISSIONS / took}

"""Deferred requests acknowledged a second, over one stream, by a replica that does not answer them meanwhile."""

import itertools
import time

from realtime_service.client import CallError, Client
from shared_model import demo_messages
from tests.benchmarks import replicas
from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.replicas import Place

SUBMISSIONS = 20_000


def measure(place: Place) -> dict[str, float]:
    """Raises: CannotMeasure where one was not stored."""
    texts = demo_messages.texts(seed=8)
    work = [(f"work-{number}", text) for number, text in enumerate(itertools.islice(texts, SUBMISSIONS))]
    with replicas.replica(place, TANDEM_HARVEST="false") as replica, Client(replica.address) as client:
        replicas.settle(replica.address)
        began = time.monotonic()
        stored = [told for _, told in client.submit_stream(work) if not isinstance(told, CallError)]
        took = time.monotonic() - began
    if len(stored) < SUBMISSIONS:
        raise CannotMeasure(f"{len(stored)} of {SUBMISSIONS} submissions were stored")
    return {"submit_per_s": SUBMISSIONS / took}

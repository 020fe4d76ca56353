"""A look-up of ten messages by id, beyond an echo of gRPC: p99 at 500 calls a second, of a million rows."""

import hashlib
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.storage_pb2 import PublishedHead, PublishedScore
from shared_model.published.epochs import Epoch
from shared_model.published.publish import Published, publish
from tests.benchmarks import replicas
from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.interfaces import targets
from tests.benchmarks.peers import h2load
from tests.benchmarks.replicas import Place
from tests.load import echo
from tests.load.calls import quantile
from tests.load.child import Child

LOOKUP = "/scoring.v1.ScoringService/Lookup"
ROWS, IDS, RATE = 1_000_000, 10, 500.0
#: In flight at once on the one connection; calls of several would begin together, and wait for each other.
STREAMS = 16
BLOCKS, SECONDS = 5, 6.0
#: The most memory of an epoch, as `TANDEM_PUBLISH_MEGABYTES` sets it.
MEGABYTES = 512.0
_SCORES = (0.5, 0.2, 0.1, 0.05, 0.01)


class Messages:
    """A text of its own for each message, whose id is like that of a chat."""

    def times(self, rank: int) -> int:
        return 1

    def entries(self, ranks: int) -> Iterator[tuple[str, bytes]]:
        return ((message_id(rank), _key(rank)) for rank in range(ranks))


def message_id(rank: int) -> str:
    return f"conversation-{rank // 7:09d}-{rank % 7}"


def _key(rank: int) -> bytes:
    return hashlib.blake2b(rank.to_bytes(8, "little"), digest_size=16).digest()


def published(place: Place) -> Published:
    """A night of as many rows, of the release that answers, within the memory of an epoch."""
    first, *others = (len(spec.output.names) for spec in place.store.open(place.first).heads.specs)

    def best(rank: int, labels: int) -> list[int]:
        return [(rank + step) % labels for step in range(min(5, labels))]

    def score(rank: int) -> PublishedScore:
        heads = [PublishedHead(labels=best(rank, width), scores=_SCORES[:width]) for width in others]
        return PublishedScore(labels=best(rank, first), scores=_SCORES, tokens=12, heads=heads)

    epoch = Epoch(place.first, "bf16", "2026-01-14", 1)
    scores = ((_key(rank), score(rank)) for rank in range(ROWS))
    done = publish(place.client, epoch, scores, max_bytes=MEGABYTES * 1e6, ids=Messages())
    if done.keys != ROWS:
        raise CannotMeasure(f"only {done.keys} of {ROWS} rows fit into {MEGABYTES:.0f} MB")
    return done


def measure(place: Place) -> dict[str, float]:
    """The median over the blocks of the difference of two p99, in milliseconds; and the epoch's memory."""
    done, draw = published(place), random.Random(7)
    added, answer = list[float](), 0
    with replicas.replica(place, TANDEM_LANES="latency") as running, tempfile.TemporaryDirectory() as name:
        replicas.settle(running.address)
        folder = Path(name)
        for block in range(BLOCKS):
            ids = [message_id(draw.randrange(ROWS)) for _ in range(IDS)]
            asked = scoring_pb2.LookupRequest(ids=ids, top_k=3).SerializeToString()
            lookup = targets.of_grpc(running.address, LOOKUP, asked, folder / f"lookup-{block}")
            answer = answer or lookup.answer_bytes - 5
            with Child(echo.__name__, str(answer)) as child:
                echoed = targets.of_grpc(child.opened["address"], echo.PATH, asked, folder / f"echo-{block}")
                both = (echoed, lookup)
                for target in both:
                    h2load.evenly(target, 1, RATE, 1.0, STREAMS)
                floor, found = (h2load.evenly(target, 1, RATE, SECONDS, STREAMS) for target in both)
            added.append(found.p(0.99) - floor.p(0.99))
            print(
                f"  echo p50 {floor.p(0.5):.3f} p99 {floor.p(0.99):.3f} ms, "
                f"look-up p50 {found.p(0.5):.3f} p99 {found.p(0.99):.3f} ms",
                flush=True,
            )
    return {"lookup_over_echo_p99_ms": quantile(added, 0.5), "lookup_epoch_mb": done.bytes / 1e6}

"""A look-up of ten messages by id, beyond an echo of gRPC: p99 at 500 calls a second, of a million rows.

h2load cannot pace them: its timer ticks every 10 ms, and it begins five calls at each tick.
"""

import base64
import hashlib
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

import grpc

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.storage_pb2 import PublishedHead, PublishedScore
from shared_model.published.epochs import Epoch
from shared_model.published.publish import Published, publish
from tests.benchmarks import replicas
from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.replicas import Place
from tests.load import arrivals, echo, load
from tests.load.calls import LATE_MS, quantile, statuses
from tests.load.child import Child
from tests.load.plans import Plan

LOOKUP = "/scoring.v1.ScoringService/Lookup"
ROWS, IDS, RATE = 1_000_000, 10, 500.0
#: Different calls, and the blocks in which both servers get them in turn, of so many seconds each.
MESSAGES, BLOCKS, SECONDS = 1_000, 5, 6.0
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
    messages = [question(draw) for _ in range(MESSAGES)]
    with (
        replicas.replica(place, TANDEM_LANES="latency") as running,
        Child(echo.__name__, str(answer_bytes(running.address, messages))) as child,
    ):
        replicas.settle(running.address)
        lookup = Plan(
            address=running.address,
            messages=[base64.b64encode(it).decode() for it in messages],
            seconds=SECONDS,
            due=arrivals.evenly(RATE, SECONDS).tolist(),
            method=LOOKUP,
        )
        both = replace(lookup, address=child.opened["address"], method=echo.PATH), lookup
        for plan in both:
            load.run(replace(plan, seconds=1.0, due=arrivals.evenly(RATE, 1.0).tolist()))
        added = [_added(*both) for _ in range(BLOCKS)]
    return {"lookup_over_echo_p99_ms": quantile(added, 0.5), "lookup_epoch_mb": done.bytes / 1e6}


def question(draw: random.Random) -> bytes:
    ids = [message_id(draw.randrange(ROWS)) for _ in range(IDS)]
    return scoring_pb2.LookupRequest(ids=ids, top_k=3).SerializeToString()


def answer_bytes(address: str, messages: Sequence[bytes]) -> int:
    """The size of a typical answer. Raises: CannotMeasure if a message is not found."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(LOOKUP)
        answers = [call(message, timeout=10, wait_for_ready=True) for message in messages]
    for answer in answers:
        if not all(it.HasField("result") for it in scoring_pb2.LookupResponse.FromString(answer).results):
            raise CannotMeasure("a published message is not found")
    return int(statistics.median(map(len, answers)))


def _added(echoed: Plan, lookup: Plan) -> float:
    """Milliseconds. Raises: CannotMeasure."""
    floor, found = _milliseconds(echoed), _milliseconds(lookup)
    print(
        f"  echo p50 {quantile(floor, 0.5):.3f} p99 {quantile(floor, 0.99):.3f} ms, "
        f"look-up p50 {quantile(found, 0.5):.3f} p99 {quantile(found, 0.99):.3f} ms",
        flush=True,
    )
    return quantile(found, 0.99) - quantile(floor, 0.99)


def _milliseconds(plan: Plan) -> list[float]:
    """Of each call, from when it was sent. Raises: CannotMeasure."""
    calls = load.run(plan)
    if not calls.answered.all():
        raise CannotMeasure(f"calls ended with {statuses(calls)}")
    if calls.late_ms > LATE_MS:
        raise CannotMeasure(f"the client sent calls {calls.late_ms:.1f} ms late; the machine is too busy")
    return calls.from_sent_ms.tolist()

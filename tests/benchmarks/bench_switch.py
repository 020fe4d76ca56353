"""python -m tests.benchmarks.bench_switch: what callers feel when a release is promoted, and how long it takes.

One replica answers chat messages at a steady rate, sent open loop; a second release is promoted beside them, then
rolled back, and then both again with two replicas. The second release holds the first one's bytes under another name,
so that what is measured is the switch. `alone` is the same load in the same run with nothing to load.
"""

import argparse
import contextlib
import itertools
import math
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc

from realtime_service.client import Client
from shared_model import demo_messages
from shared_model.errors import TandemError
from shared_model.releases import pointer
from shared_model.types import Priority
from tests.benchmarks import harness, replicas
from tests.benchmarks.harness import CannotMeasure, Target
from tests.benchmarks.replicas import Place

ROUNDS = 3
#: Calls per second: about a tenth of what two cores answer.
RATE = 40.0
ALONE_SECONDS = 12.0
DEFAULT_OUT = Path(".tandem/bench/switch.json")
PACKAGES = ("openvino", "grpcio", "redis", "numpy")

TARGETS = (
    Target("warm_p95_over_alone", "ratio", "<= 2"),
    Target("all_switched_after_warm_s", "s", "<= 5"),
    Target("promotion_s", "s", "<= 60"),
    Target("rollback_s", "s", "<= 60"),
    Target("failed_calls", "calls", "<= 0"),
)


@dataclass(frozen=True)
class Call:
    """`sent`: when it was due, monotonic seconds; `milliseconds` from then to the answer; "" is a failure."""

    sent: float
    milliseconds: float
    release: str


class SteadyCalls:
    """Chat messages at RATE from another thread while this context lasts. A late answer delays no other call."""

    def __init__(self, address: str) -> None:
        self.calls: list[Call] = []
        # One attempt: what callers feel is what the replica did.
        self._client = Client(address, attempts=1)
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(64)

    def __enter__(self) -> "SteadyCalls":
        self._sender = threading.Thread(target=self._send)
        self._sender.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._sender.join()
        self._pool.shutdown()
        self._client.close()

    def between(self, start: float, end: float) -> list[float]:
        return [call.milliseconds for call in self.calls if start <= call.sent < end]

    def _send(self) -> None:
        texts = demo_messages.texts(seed=int(time.time()))
        started = time.monotonic()
        for number in itertools.count():
            due = started + number / RATE
            if self._over.wait(max(0.0, due - time.monotonic())):
                return
            self._pool.submit(self._call, next(texts), due)

    def _call(self, text: str, due: float) -> None:
        release = ""
        with contextlib.suppress(grpc.RpcError):
            release = self._client.score(text, timeout_ms=2_000, priority=Priority.REAL_TIME).release
        self.calls.append(Call(due, 1000 * (time.monotonic() - due), release))


def main(arguments: list[str] | None = None) -> int:
    """0 when it measured, whatever it found: the table says which bounds do not hold. 2 when it could not."""
    args = _parser().parse_args(arguments)
    place = harness.place(PACKAGES)
    try:
        rounds = [measure(number) for number in range(1, ROUNDS + 1)]
    except (CannotMeasure, TandemError) as error:
        print(f"bench-switch: {error}", file=sys.stderr)
        return 2
    runs = {target.name: [figures[target.name] for figures in rounds] for target in TARGETS}
    result = harness.result(TARGETS, runs, place)
    result.write(args.out)
    print(f"\n{result.table()}\n\nwritten to {args.out}")
    return 0


def measure(number: int) -> dict[str, float]:
    """One round: figure → value."""
    print(f"round {number} of {ROUNDS}: one replica under load", flush=True)
    with replicas.place() as place, replicas.replica(place) as one:
        felt = _switch_under_load(place, one.address)
        print(f"round {number} of {ROUNDS}: two replicas", flush=True)
        with replicas.replica(place) as other:
            return {**felt, **_switch_replicas(place, (one.address, other.address))}


def _switch_under_load(place: Place, address: str) -> dict[str, float]:
    with SteadyCalls(address) as load:
        began = time.monotonic()
        time.sleep(ALONE_SECONDS)
        promoted = time.monotonic()
        pointer.promote(place.store, place.client, place.second)
        switched = replicas.until(lambda: replicas.active(address) == place.second)
        rolled_back = time.monotonic()
        pointer.rollback(place.store, place.client)
        back = replicas.until(lambda: replicas.active(address) == place.first)
        time.sleep(ALONE_SECONDS)
    # The first second holds the connection and the first texts of their shapes.
    alone = load.between(began + 1, promoted) + load.between(back + 1, math.inf)
    warming = load.between(promoted, switched) + load.between(rolled_back, back)
    print(f"  p95 alone {_p95(alone):.2f} ms of {len(alone)} calls, meanwhile {_p95(warming):.2f} ms of {len(warming)}")
    return {
        "warm_p95_over_alone": _p95(warming) / _p95(alone),
        "failed_calls": float(sum(not call.release for call in load.calls)),
    }


def _switch_replicas(place: Place, addresses: Sequence[str]) -> dict[str, float]:
    began = time.monotonic()
    pointer.promote(place.store, place.client, place.second)
    # A replica is warm when it no longer loads the release and has not failed it; all answer with it soon after.
    warm = replicas.until(lambda: all(replicas.is_warm(address, place.second) for address in addresses))
    switched = replicas.until(lambda: all(_answers(address) == place.second for address in addresses))
    rolled_back = time.monotonic()
    pointer.rollback(place.store, place.client)
    back = replicas.until(lambda: all(_answers(address) == place.first for address in addresses))
    return {
        "all_switched_after_warm_s": switched - warm,
        "promotion_s": switched - began,
        "rollback_s": back - rolled_back,
    }


def _answers(address: str) -> str:
    with Client(address) as client:
        return client.score("where is my card").release


def _p95(milliseconds: Sequence[float]) -> float:
    """Nearest rank."""
    if not milliseconds:
        raise CannotMeasure("no calls were made in a phase; the machine is too busy")
    ranked = sorted(milliseconds)
    return ranked[math.ceil(0.95 * len(ranked)) - 1]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench-switch", description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON file to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())

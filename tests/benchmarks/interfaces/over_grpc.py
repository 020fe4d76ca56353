"""The time that HTTP and JSON add to a call: the same text by either, in turn, on one connection that stays open."""

import tempfile
from pathlib import Path

from protos.scoring.v1 import scoring_pb2
from tests.benchmarks import replicas
from tests.benchmarks.interfaces import targets
from tests.benchmarks.peers import h2load
from tests.benchmarks.peers.stage import SCORE, TEXT
from tests.benchmarks.replicas import Place
from tests.load.calls import quantile

BLOCKS, SECONDS = 6, 3.0
_SETTINGS = {"TANDEM_PRECOMPUTED": "false", "TANDEM_HTTP_ADDRESS": "127.0.0.1:0", "TANDEM_LANES": "latency"}


def measure(place: Place) -> dict[str, float]:
    """The median over the blocks of the difference of two p50, in milliseconds."""
    asked = {"texts": [TEXT], "priority": "REAL_TIME"}
    message = scoring_pb2.ScoreRequest(texts=[TEXT], priority=scoring_pb2.REAL_TIME).SerializeToString()
    with replicas.replica(place, **_SETTINGS) as running, tempfile.TemporaryDirectory() as name:
        replicas.settle(running.address)
        by_grpc = targets.of_grpc(running.address, SCORE, message, Path(name) / "grpc")
        by_http = targets.of_http(f"{running.http}/v1/score", asked, Path(name) / "http")
        added = list[float]()
        for target in (by_grpc, by_http):
            h2load.closed(target, 1, SECONDS)
        for _ in range(BLOCKS):
            grpc, http = (h2load.closed(target, 1, SECONDS).p(0.5) for target in (by_grpc, by_http))
            added.append(http - grpc)
            print(f"  p50 gRPC {grpc:.3f} ms, HTTP {http:.3f} ms", flush=True)
    return {"http_over_grpc_ms": quantile(added, 0.5)}

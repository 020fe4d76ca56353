"""The cost of TLS: one call at a time over warm connections, in turn to a replica with TLS and to one without."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import grpc

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from tests.benchmarks import replicas
from tests.benchmarks.online.stage import SETTINGS, Stage
from tests.certified import certified
from tests.load.calls import quantile

_BLOCKS, _BLOCK_TEXTS = 5, 400
#: Calls of each connection before those that count.
_WARM = 50


def tls(stage: Stage) -> dict[str, float]:
    """Median over blocks of: p50 with TLS − p50 without."""
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder:
        own = certified(Path(folder))
        secure = own.channel()
        # The two know each other by Redis, so that the plain one calls the other with TLS.
        trusting = {"TANDEM_TLS_CA": str(own.ca)}
        with (
            replicas.replica(stage.place, **SETTINGS, **trusting) as plain,
            replicas.replica(stage.place, **SETTINGS, **own.environment()) as secured,
            grpc.insecure_channel(plain.address) as first,
            grpc.secure_channel(secured.address, secure.credentials(), secure.options) as second,
        ):
            stubs = [ScoringServiceStub(first), ScoringServiceStub(second)]
            _in_turn(stubs, stage.interactive(_WARM))
            blocks = [_in_turn(stubs, stage.interactive(_BLOCK_TEXTS)) for _ in range(_BLOCKS)]
    without, with_tls = (quantile([block[it] for block in blocks], 0.5) for it in (0, 1))
    stage.measured("without TLS, p50 ms", without)
    stage.measured("with TLS, p50 ms", with_tls)
    return {"tls_overhead_ms": quantile([block[1] - block[0] for block in blocks], 0.5)}


def _in_turn(stubs: Sequence[ScoringServiceStub], texts: Sequence[str]) -> list[float]:
    """The p50 of each, milliseconds. They change places with each text: the second finds caches warm."""
    took: list[list[float]] = [[] for _ in stubs]
    for number, text in enumerate(texts):
        request = scoring_pb2.ScoreRequest(texts=[text], priority=scoring_pb2.REAL_TIME)
        for place in (0, 1) if number % 2 else (1, 0):
            began = time.perf_counter()
            stubs[place].Score(request, timeout=10)
            took[place].append(1000 * (time.perf_counter() - began))
    return [quantile(milliseconds, 0.5) for milliseconds in took]

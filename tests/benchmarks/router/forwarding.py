"""Added latency of one hop at p50: the same texts to a replica and through a router in front of it, in turn."""

from shared_model import demo_messages
from tests.benchmarks import replicas
from tests.benchmarks.replicas import Place
from tests.load import load
from tests.load.calls import quantile
from tests.load.plans import Plan

BLOCKS, BLOCK_TEXTS = 4, 400
_SETTINGS = {"TANDEM_PRECOMPUTED": "false"}


def measure(place: Place) -> dict[str, float]:
    """One call in flight; the median over the blocks of the difference of two p50, in milliseconds."""
    texts = demo_messages.texts(seed=7)
    with replicas.replica(place, **_SETTINGS) as replica, replicas.replica(place, TANDEM_LANES="none") as router:
        replicas.settle(replica.address)
        replicas.until(lambda: replicas.active(router.address) == place.first)
        added = list[float]()
        for _ in range(BLOCKS):
            block = [next(texts) for _ in range(BLOCK_TEXTS)]
            direct, forwarded = (_p50(address, block) for address in (replica.address, router.address))
            added.append(forwarded - direct)
            print(f"  p50 direct {direct:.2f} ms, through a router {forwarded:.2f} ms", flush=True)
    return {"forward_p50_ms": quantile(added, 0.5)}


def _p50(address: str, texts: list[str]) -> float:
    return load.run(Plan(address=address, texts=texts, seconds=60.0, once=True, priority="REAL_TIME")).p50()

"""Cost of heartbeats and of refreshing the snapshot, for one of 64 replicas."""

from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.replicas import Place
from tests.benchmarks.router import fleet
from tests.load.child import Child

SECONDS = 10.0


def measure(place: Place) -> dict[str, float]:
    """CPU as a share of one core. Raises: CannotMeasure where the replica did not see the others."""
    with (
        Child("tests.benchmarks.router.fresh", place.redis_url),
        Child("tests.benchmarks.router.beating", place.redis_url) as one,
    ):
        told = one.ask(seconds=SECONDS)
    if told["replicas"] != fleet.REPLICAS:
        raise CannotMeasure(f"the heartbeat saw {told['replicas']} replicas, not {fleet.REPLICAS}")
    return {"heartbeat_core_share": told["share"]}

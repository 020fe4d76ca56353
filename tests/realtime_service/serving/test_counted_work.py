"""Which requests a worker tells the others of, and for how long."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from realtime_service.cluster import worker_loads
from realtime_service.cluster.forwarded_context import ForwardedContext
from realtime_service.cluster.worker_loads import WorkerLoads
from realtime_service.errors import DeadlineExpired
from realtime_service.identity import Identity
from realtime_service.models.registry import Model, Models
from realtime_service.routing.snapshot import Snapshot
from realtime_service.serving.dispatcher import Dispatcher
from realtime_service.serving.request import CallContext, ScoringRequest
from realtime_service.settings import SERVED
from realtime_service.telemetry.metrics import Metrics
from shared_model.clock import SystemClock
from shared_model.encoding import Encoding
from shared_model.types import Priority, ServingPath

CALLER = Identity("addr:x", "addr:x")
TEXTS, TEXT_SECONDS = ("card", "pin", "lost"), 0.020


class Encoder:
    reads = SimpleNamespace(texts=lambda texts, pairs: list(texts))

    def encode(self, text: str) -> Encoding:
        return Encoding(np.ones(5, np.int32), truncated=False)


async def counted(folder: Path, forwarded: ForwardedContext | None) -> tuple[float, float]:
    """Seconds of a request's work that other workers see while it runs, and after it has failed."""
    worker_loads.create(folder / "loads", 2)
    here, other = (WorkerLoads(folder / "loads", 2, index) for index in range(2))
    lane, seen = here.own(ServingPath.DYNAMIC, real_time=False), list[float]()

    async def compute(*_: object) -> None:
        seen.append(lane.ahead())
        raise DeadlineExpired("the deadline passed")

    def per_text(model: Model, path: ServingPath, tokens: int) -> float:
        return TEXT_SECONDS if tokens == 5 else 0.0

    model = Model("r-1", *cast(Any, (None, Encoder(), {}, None)))
    device = SimpleNamespace(busy=False, finish_of=lambda *_: 0.0, per_text=per_text, compute=compute)
    membership = SimpleNamespace(snapshot=Snapshot("here", lanes=SERVED), worker_loads=here)
    parts: Any = (Models.of(model), device, membership, None, None, None, Metrics([]), SystemClock())
    request = ScoringRequest(TEXTS, (), Priority.NORMAL, None, 3, "", "")
    with pytest.raises(DeadlineExpired):
        await Dispatcher(*parts).score(request, CallContext(CALLER, None, "/any", b"", forwarded=forwarded))
    assert other.own(ServingPath.DYNAMIC, real_time=False).ahead() == 0.0
    return seen[0], lane.ahead()


async def test_work_counts_from_its_admission_until_it_ends(tmp_path: Path) -> None:
    assert await counted(tmp_path, forwarded=None) == pytest.approx((len(TEXTS) * TEXT_SECONDS, 0.0))


async def test_work_of_another_service_counts_and_that_of_another_worker_is_counted_there(tmp_path: Path) -> None:
    for name, is_counted, seconds in (("a", False, len(TEXTS) * TEXT_SECONDS), ("b", True, 0.0)):
        (folder := tmp_path / name).mkdir()
        sent = ForwardedContext(ServingPath.DYNAMIC, "", "as decided", counted=is_counted)
        assert await counted(folder, sent) == pytest.approx((seconds, 0.0))

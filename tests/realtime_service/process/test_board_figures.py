"""A replica counts its figures beside the event loop, which answers calls meanwhile, and tells them in Redis."""

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio

from realtime_service.process.board import Board
from realtime_service.telemetry.metrics import Metrics
from realtime_service.telemetry.metrics.service_levels import ReplicaFigures, Totals
from shared_model.clock import SystemClock
from shared_model.redis_store import keys
from shared_model.types import ServingPath


def parts(client: "redis.asyncio.Redis", metrics: Metrics) -> Any:
    """Of a replica that has opened no lane."""
    serving = SimpleNamespace(by_name={}, models={})
    device = SimpleNamespace(lanes={})
    models = SimpleNamespace(serving=serving)
    status = SimpleNamespace(
        replica="one", address="here:1", draining=False, rollout=None, models=models, device=device
    )
    membership = SimpleNamespace(snapshot=SimpleNamespace(lanes=()))
    shared = {"redis": client, "metrics": metrics, "clock": SystemClock(), "settings": None, "deferred_queue": None}
    return SimpleNamespace(status=status, membership=membership, **shared)


async def test_the_event_loop_counts_nothing(own_redis: "redis.asyncio.Redis", monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, counting = Metrics([]), list[threading.Thread]()
    totals, to_json = metrics.totals, ReplicaFigures.to_json

    def counted(at: float) -> Totals:
        counting.append(threading.current_thread())
        return totals(at)

    def encoded(figures: ReplicaFigures) -> str:
        counting.append(threading.current_thread())
        return to_json(figures)

    board = Board(parts(own_redis, metrics), callers=None)  # type: ignore[arg-type]  # asked by readers alone
    monkeypatch.setattr(metrics, "totals", counted)
    monkeypatch.setattr(ReplicaFigures, "to_json", encoded)
    metrics.answered(ServingPath.LATENCY, 0.01, met=True, model="main")
    await board.run_once()
    assert len(counting) == 2
    assert threading.current_thread() not in counting
    told = json.loads(await own_redis.get(keys.replica_figures("one")))
    assert (told["address"], told["ended"]) == ("here:1", {"latency": {"met": 1}})

"""The process of a replica, without its parts."""

import asyncio
import gc

import pytest

from realtime_service.process.background import BackgroundTasks
from realtime_service.process.server import Server


async def test_no_collection_looks_at_the_objects_of_the_start_once_a_replica_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, stop = list[str](), asyncio.Event()

    async def opened(server: Server) -> None:
        steps.append("lanes are open")

    def ready() -> None:
        steps.append("ready")
        stop.set()

    monkeypatch.setattr(Server, "_open", opened)
    monkeypatch.setattr(gc, "freeze", lambda: steps.append("frozen"))
    server = Server.__new__(Server)
    server._background_tasks = BackgroundTasks()
    waiting = server._background_tasks.start(asyncio.sleep(60))
    await server.run_until(stop, ready)
    await server._background_tasks.stop(waiting)
    assert steps == ["lanes are open", "frozen", "ready"]

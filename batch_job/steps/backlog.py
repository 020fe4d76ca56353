"""`drain --check`: how many deferred requests wait for a drain. No JVM."""

import argparse
import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta

from batch_job import lookup
from batch_job.launch import spark_submit
from batch_job.settings import NightlySettings
from batch_job.tables import fence
from shared_model import settings
from shared_model.deferred import Backlog, DeferredQueue
from shared_model.redis_store.server import RedisServer
from shared_model.settings import DeferredSettings, StateSettings


def run(args: argparse.Namespace, state: StateSettings) -> None:
    """Prints one line, and ends with CHANGED where there is work for `drain`. Raises: StoreUnavailable; RecordError."""
    backlog, limit = asyncio.run(_look(state)), settings.load(NightlySettings).deferred_drain_limit
    line, found = describe(backlog, datetime.now(UTC)), lookup.find_latest(state)
    if backlog.waiting and not limit:
        line += "; TANDEM_DEFERRED_DRAIN_LIMIT=0 leaves them to idle lanes"
    elif backlog.waiting and not found:
        line += f"; {lookup.nothing_planned(state)}"
    path, latest = found or ("", None)
    said = {"line": line, "ds": latest.ds if latest else "", "record": str(path)}
    print(json.dumps(said) if args.json else line)
    if backlog.waiting and limit and found:
        sys.exit(spark_submit.CHANGED)


async def _look(state: StateSettings) -> Backlog:
    with RedisServer(state) as server:
        async with fence.connect_asyncio(server.url) as client:
            return await DeferredQueue(client, settings.load(DeferredSettings)).backlog()


def describe(backlog: Backlog, now: datetime) -> str:
    if not backlog.waiting:
        return "0 deferred requests wait"
    waiting = f"{backlog.waiting:,} deferred requests wait"
    if backlog.due_in_ms is None:
        return f"{waiting}, none with a deadline"
    due = now + timedelta(milliseconds=backlog.due_in_ms)
    seconds = abs(backlog.due_in_ms) / 1000
    when = f"in {seconds:,.0f} s" if backlog.due_in_ms > 0 else f"{seconds:,.0f} s ago"
    return f"{waiting}; earliest deadline {due:%Y-%m-%d %H:%M:%S} UTC, {when}"

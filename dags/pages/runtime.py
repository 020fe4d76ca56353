"""Reads run records by the runtime's Python: Airflow's has nothing that reaches a store behind a URL. Standard library
only; no shell, a bounded time, a few processes at once."""

import asyncio
import json
from typing import Any

from batch_job.launch import records, spark_submit

#: Longest wait for an answer, and most processes at once: others wait, within that time.
SECONDS, AT_ONCE = 30.0, 2
_free = asyncio.Semaphore(AT_ONCE)


class Unreadable(Exception):
    """Records could not be read: the reason in one line."""


async def runs() -> list[dict[str, Any]]:
    """The newest runs, as `python -m batch_job runs --json` lists them. Raises: Unreadable, TimeoutError."""
    return [json.loads(line) for line in (await _read(records.runs_command())).splitlines()]


async def report(ds: str, run_id: str) -> str:
    """The report page of a run. Raises: Unreadable, TimeoutError."""
    return (await _read(records.page_command(ds, run_id))).decode()


async def picture(ds: str, run_id: str) -> str:
    """The plot of a run's labels, as SVG. Raises: Unreadable, TimeoutError."""
    return (await _read(records.picture_command(ds, run_id))).decode()


async def _read(command: list[str]) -> bytes:
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    async with asyncio.timeout(SECONDS), _free:
        process = await asyncio.create_subprocess_exec(
            *command, env=spark_submit.step_environment(), stdin=nothing, stdout=pipe, stderr=pipe
        )
        try:
            output, said = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode:
        raise Unreadable(spark_submit.complaint(said.decode(errors="replace").splitlines()))
    return output

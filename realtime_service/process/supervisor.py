"""Starts the workers of a service, and restarts them when they die."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from realtime_service.cluster import worker_loads
from realtime_service.process.cores import Cores
from realtime_service.process.gpus import Gpus, environment
from realtime_service.process.worker_pages import WorkerPages
from realtime_service.settings import ServiceSettings
from realtime_service.telemetry.metrics.workers import WorkerMetrics
from realtime_service.transport.metrics_server import serve_metrics
from shared_model.tls import CertificateFiles

#: A worker that died within this time after it was ready counts as failed to start.
_SETTLED_SECONDS = 2.0
_BACKOFF_SECONDS = 0.5
_LONGEST_BACKOFF_SECONDS = 4.0
#: Failed starts in a row, while no worker serves, before the service gives up.
_MOST_FAILED_STARTS = 3
#: A worker that has not ended by then is killed; more than lame duck and drain together.
_STOP_SECONDS = 20.0

log = logging.getLogger(__name__)


class CannotStart(Exception):
    """No worker can start. `status`: the exit status of the service."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True)
class Ready:
    """The line that a worker prints once it takes calls: its first release, its own address, and the URL of HTTP, if
    that is served."""

    release: str
    address: str
    http: str = ""


@dataclass(eq=False)
class Worker:
    """One process. `ready_at`: monotonic seconds; None until it takes calls."""

    process: asyncio.subprocess.Process
    ready: Ready | None = None
    ready_at: float | None = None

    @property
    def settled(self) -> bool:
        return self.ready_at is not None and time.monotonic() - self.ready_at > _SETTLED_SECONDS

    async def ended(self, on_ready: asyncio.Event) -> int:
        """Wait until the process ends, and read its `Ready` line; returns its exit code."""
        printed: Any = self.process.stdout  # a pipe: see `_start`
        async for line in printed:
            with contextlib.suppress(ValueError, TypeError):
                self.ready, self.ready_at = Ready(**json.loads(line)), time.monotonic()
                on_ready.set()
        return await self.process.wait()


def backoff(failures: int) -> float:
    """Seconds before the next start, after so many failed starts in a row."""
    return min(_BACKOFF_SECONDS * 2 ** (failures - 1), _LONGEST_BACKOFF_SECONDS) if failures else 0.0


class Supervisor:
    """Loads no model itself. `cores`, `gpus`: of each worker; `address`: the public one, with its port; `files`: of the
    certificate that scrapes of metrics are shown."""

    def __init__(
        self,
        settings: ServiceSettings,
        redis_url: str,
        address: str,
        cores: Sequence[Cores],
        gpus: Sequence[Gpus] = (),
        files: CertificateFiles | None = None,
    ) -> None:
        self._address = address
        self._metrics = WorkerMetrics(len(cores))
        self._metrics_address = settings.metrics_address
        self._files = files
        # Settings that flags may have changed, and addresses that only the supervisor knows.
        self._environ = os.environ | {
            "TANDEM_GRPC_ADDRESS": address,
            "TANDEM_REFLECTION": settings.reflection,
            "TANDEM_LANES": settings.lanes,
            "TANDEM_REDIS_URL": redis_url,
        }
        self._cores = cores
        self._gpus = gpus
        self._workers: dict[int, Worker] = {}
        # By worker: what follows its cores on its command line.
        self._arguments: list[tuple[str, ...]] = []
        self._stopping = False
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> int:
        """Keep every worker alive until `stop`. Returns the exit status: not 0 if no worker can start. Raises:
        SettingError where metrics cannot be served."""
        async with contextlib.AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-workers-")))
            count, loads = len(self._cores), folder / "loads"
            worker_loads.create(loads, count)
            sockets = [str(folder / str(index)) for index in range(count)]
            self._arguments = [(socket, str(loads), str(count), str(index)) for index, socket in enumerate(sockets)]
            pages = WorkerPages(sockets, self._metrics)
            address = serve_metrics(stack, self._metrics_address, pages, self._files)
            self._metrics_url = f"{'https' if self._files else 'http'}://{address}"
            return await self._keep_all(stop)

    async def _keep_all(self, stop: asyncio.Event) -> int:
        keeping = [self._spawn(self._keep(index)) for index in range(len(self._cores))]
        self._spawn(self._announce(time.monotonic()))
        stopped = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([stopped, *keeping], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        await self._stop()
        try:
            for task in done - {stopped}:
                task.result()
        except CannotStart as error:
            return error.status
        return 0

    async def _keep(self, index: int) -> None:
        """Run one worker after another on the same cores. Raises: CannotStart."""
        failures = 0
        while not self._stopping:
            worker = await self._start(index)
            code = await worker.ended(self._changed)
            del self._workers[index]
            if self._stopping:
                return
            failures = 0 if worker.settled else failures + 1
            # Where no worker serves, a restart may not help: the worker has printed the reason on stderr.
            unserved = failures and not any(other.ready for other in self._workers.values())
            if unserved and code == 2:
                raise CannotStart(2)
            if unserved and failures >= _MOST_FAILED_STARTS:
                log.error("no worker serves after %d starts: giving up", failures)
                raise CannotStart(1)
            log.error("worker %d, process %d, ended with %d", index, worker.process.pid, code)
            self._metrics.restarted(index)
            await asyncio.sleep(backoff(failures))

    async def _start(self, index: int) -> Worker:
        cores = ",".join(map(str, self._cores[index]))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"{__package__}.worker", cores, *self._arguments[index]),
            env={**self._environ, **environment(self._gpus, index)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # The supervisor forwards Ctrl-C.
            process_group=0,
        )
        worker = self._workers[index] = Worker(process)
        if self._stopping:
            _signal(worker, signal.SIGTERM)
        return worker

    async def _announce(self, started: float) -> None:
        """Print once that all workers take calls, and their addresses."""
        while len(ready := [it.ready for it in self._workers.values() if it.ready]) < len(self._cores):
            self._changed.clear()
            await self._changed.wait()
        metrics = self._metrics_url
        metrics += f" and HTTP on {ready[0].http}" if ready[0].http else ""
        seconds, release = time.monotonic() - started, ready[0].release
        sys.stdout.write(
            f"ready in {seconds:.1f} s: {release} on {self._address}, metrics on {metrics} ({len(ready)} workers)\n"
        )
        sys.stdout.flush()

    async def _stop(self) -> None:
        """Send SIGTERM to all workers, and SIGKILL to those that have not ended in time."""
        self._stopping = True
        for worker in self._workers.values():
            _signal(worker, signal.SIGTERM)
        waits = [asyncio.create_task(worker.process.wait()) for worker in self._workers.values()]
        if waits:
            await asyncio.wait(waits, timeout=_STOP_SECONDS)
        for worker in self._workers.values():
            _signal(worker, signal.SIGKILL)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _signal(worker: Worker, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        worker.process.send_signal(number)

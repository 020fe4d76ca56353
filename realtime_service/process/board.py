"""The SLA board: each replica tells its figures in Redis once a second, and any of them shows those of all."""

import asyncio
import concurrent.futures
import contextlib
import json
import logging
from collections import deque
from dataclasses import asdict, replace

import redis
import redis.asyncio
from prometheus_client import make_wsgi_app

from realtime_service.errors import PermissionDenied
from realtime_service.process import error_budget
from realtime_service.process.calls import Parts
from realtime_service.serving.status import TYPICAL_TOKENS
from realtime_service.telemetry.metrics import service_levels
from realtime_service.telemetry.metrics.service_levels import LaneFigures, ModelFigures, ReplicaFigures, Shared, Totals
from realtime_service.transport.authentication import AUTHORIZATION, Callers
from realtime_service.transport.board_pages import BoardPages
from realtime_service.transport.metrics_server import serve_metrics
from realtime_service.transport.plain_call_context import PlainCallContext
from shared_model.errors import StoreUnavailable
from shared_model.redis_store import keys
from shared_model.tls import CertificateFiles
from shared_model.types import ServingPath

PERIOD_SECONDS = 1.0
#: Figures are of the last so many periods, and are gone so long after a replica is.
_PERIODS, _TTL_MS = 10, 5000
#: However many look, Redis is asked at most this often.
_SHOWN_SECONDS = 0.5
#: Longest wait of one who looks.
_ANSWER_SECONDS = 4.0

log = logging.getLogger(__name__)


class Board:
    """`show` is for other threads; all else belongs to the event loop that it was made in."""

    def __init__(self, parts: Parts, callers: Callers) -> None:
        """`callers`: verifies the tokens of readers, where calls need one."""
        self._callers = callers
        self._redis = parts.redis
        self._settings = parts.settings
        self._status = parts.status
        self._membership = parts.membership
        self._metrics = parts.metrics
        self._queue = parts.deferred_queue
        self._clock = parts.clock
        self._loop = asyncio.get_running_loop()
        self._totals = deque([self._metrics.totals(self._clock.monotonic())], maxlen=_PERIODS + 1)
        # That are in the error budget.
        self._added: Totals | None = None
        self._problem = ""
        self._showing = asyncio.Lock()
        self._shown, self._shown_at = b"", -_SHOWN_SECONDS

    def serve(self, stack: contextlib.AsyncExitStack, address: str, files: CertificateFiles | None = None) -> str:
        """Serve the board beside the metrics until the stack closes. Returns the address with its port. Raises:
        SettingError."""
        # At the end, so that requests of the last second are in the error budget.
        stack.push_async_callback(self.run_once)
        pages = BoardPages(make_wsgi_app(self._metrics.registry), self.show, self._settings.board.frames)
        return serve_metrics(stack, address, pages, files)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            await self.run_once()

    async def run_once(self) -> None:
        """Add what has ended since the last time to the error budget, and tell this replica's figures. Counts that
        could not be added are added the next time; those that Redis has added without an answer count twice."""
        # A thread counts and encodes: both take a millisecond, in which the event loop would answer no call.
        now = await asyncio.to_thread(self._metrics.totals, self._clock.monotonic())
        self._totals.append(now)
        figures = await asyncio.to_thread(self.figures().to_json)
        try:
            async with self._redis.pipeline() as pipe:
                error_budget.add(pipe, error_budget.grown(self._added, now), self._clock.wall())
                pipe.set(keys.replica_figures(self._status.replica), figures, px=_TTL_MS)
                await pipe.execute()
        except (redis.RedisError, OSError) as error:
            self._say(f"the figures of {self._status.replica} are not in Redis: {error}")
        else:
            self._added = now
            self._say("")

    def figures(self) -> ReplicaFigures:
        """Of this replica, now."""
        status, serving = self._status, self._status.models.serving
        of_lanes = {it.path: lane for it in status.device.lanes.values() if (lane := self._lane(it.path))}
        return ReplicaFigures(
            replica=status.replica,
            address=status.address,
            draining=status.draining,
            lanes={path: of_lanes[path] for path in self._membership.snapshot.lanes if path in of_lanes},
            models=[
                ModelFigures(name, it.active, it.canary, it.weight if it.canary else 0.0)
                for name, it in serving.by_name.items()
            ],
            failed_releases=sorted(status.rollout.failures) if status.rollout else [],
            **service_levels.window(self._totals[0], self._totals[-1]),
        )

    def show(self, authorization: str) -> bytes:
        """The figures of all, and what the board draws from them, as JSON, for a reader with this header
        `Authorization`. Raises: StoreUnavailable if the event loop does not answer in time; where calls need a token,
        Unauthenticated without a valid one and PermissionDenied for one that is no operator's."""
        asked = asyncio.run_coroutine_threadsafe(self._show(authorization), self._loop)
        try:
            return asked.result(_ANSWER_SECONDS)
        except concurrent.futures.TimeoutError:
            asked.cancel()
            raise StoreUnavailable(f"the service has not answered within {_ANSWER_SECONDS:g} s") from None

    async def _show(self, authorization: str) -> bytes:
        if self._settings.token_required:
            given = ((AUTHORIZATION, authorization),) if authorization else ()
            reader = await self._callers.identify(PlainCallContext(given, None, ""))
            if not reader.sees_internals:
                raise PermissionDenied("the SLA board is for operators: the token needs the role `operator`")
        async with self._showing:
            if self._clock.monotonic() - self._shown_at >= _SHOWN_SECONDS:
                own = self.figures()
                others, shared = await self._read()
                replicas = sorted([own, *others], key=lambda it: it.replica)
                drawn = service_levels.board(replicas, shared)
                read = {"replicas": [asdict(it) for it in replicas], "shared": asdict(shared), "board": drawn}
                self._shown, self._shown_at = json.dumps(read, allow_nan=False).encode(), self._clock.monotonic()
            return self._shown

    async def _read(self) -> tuple[list[ReplicaFigures], Shared]:
        """The figures of other replicas, and what all share; without Redis neither."""
        wall = self._clock.wall()
        try:
            others, silent = await self._read_others()
            shared = await self._read_shared(wall)
        except (redis.RedisError, OSError, StoreUnavailable) as error:
            return [], Shared(wall, problem=f"this replica alone is shown, because Redis does not answer: {error}")
        return others, replace(shared, silent=silent)

    async def _read_others(self) -> tuple[list[ReplicaFigures], list[str]]:
        """And the ids of those that tell none that this version can read."""
        ids = [it.id for it in self._membership.snapshot.replicas if it.id != self._status.replica]
        told = await self._redis.mget([keys.replica_figures(it) for it in ids]) if ids else []
        found, silent = [], []
        for replica, text in zip(ids, told, strict=True):
            try:
                found.append(ReplicaFigures.from_json(text or b"{}"))
            except ValueError:
                silent.append(replica)
        return found, silent

    async def _read_shared(self, wall: float) -> Shared:
        days, hours = error_budget.periods(wall)
        async with self._redis.pipeline(transaction=False) as pipe:
            for period in (*days, *hours):
                pipe.hgetall(keys.error_budget(period))
            pipe.lrange(keys.recent_runs(), 0, -1)
            *counted, nights = await pipe.execute()
        backlog = await self._queue.backlog()
        of_days, of_hours = counted[: len(days)], counted[len(days) :]
        return Shared(
            wall,
            redis=True,
            budgets=_budgets(hour=error_budget.of_hour(of_hours, wall), days=error_budget.of_days(of_days)),
            since=min((day for day, read in zip(days, of_days, strict=True) if read), default=""),
            deferred=(backlog.waiting, backlog.due_in_ms),
            nights=[json.loads(it) for it in nights],
            problem=self._problem,
        )

    def _lane(self, path: ServingPath) -> LaneFigures | None:
        """None while it warms up."""
        status, lane = self._status, self._status.device.lanes[path]
        if not status.models.serving.models:
            return None
        typical = status.device.typical(status.models.active, path, TYPICAL_TOKENS)
        if typical is None:
            return None
        return LaneFigures(
            waiting=status.device.queue_depth(path),
            load=status.device.utilisation_of(path),
            per_text=typical[2],
            device=status.variants[lane.precision],
            p95_target=self._membership.snapshot.policy.targets.get(path, 0.0),
            rate_target=lane.target_rate,
        )

    def _say(self, problem: str) -> None:
        if problem and not self._problem:
            log.warning("the SLA board: %s", problem)
        self._problem = problem


def _budgets(**windows: error_budget.Counts) -> dict[str, dict[str, tuple[float, float]]]:
    """By lane, then by window."""
    return {lane: {name: counts[lane] for name, counts in windows.items()} for lane in service_levels.LANES}

"""One round's means: a service on a place of its own, its engines alone, texts not yet sent, and loads on demand."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import grpc
import psutil

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from realtime_service.settings import ServiceSettings
from shared_model import devices
from tests.benchmarks import replicas
from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.online.cpu import CpuShares, Watch
from tests.benchmarks.online.texts import Material
from tests.benchmarks.replicas import Place
from tests.load import load
from tests.load.calls import LATE_MS, Calls, quantile, statuses
from tests.load.child import Child
from tests.load.plans import Plan
from tests.realtime_service.conftest import RunningService

#: Every call goes to a device: what was scored last night is not looked up. Requests are not deduplicated anyway.
SETTINGS = {"TANDEM_PRECOMPUTED": "false"}
#: Calls in flight for each core, at which batch-1 work keeps all of them busy.
_SATURATING = 8
#: Seconds at the start of a saturating load that do not count.
SETTLE_SECONDS = 1.0
_CAPACITY_SECONDS = 6.0

Say = Callable[[str], None]


@dataclass
class Generators:
    """The load generators' effect on the measurement, and what the cores did meanwhile, over all rounds."""

    share: float = 0.0
    late_ms: float = 0.0
    late: list[str] = field(default_factory=list)
    #: By the name of a load: what the cores did, each time that it ran.
    cores: dict[str, list[CpuShares]] = field(default_factory=dict)

    def note(self, name: str, calls: Calls) -> None:
        self.share = max(self.share, calls.generator_share)
        self.late_ms = max(self.late_ms, calls.late_ms)
        if calls.late_ms > LATE_MS:
            self.late.append(name)


@dataclass(frozen=True)
class Choice:
    """What a run asks of the group `burst`: the seed of its arrivals, its rows by comma (all, where empty), and seconds
    of each."""

    seed: int = 1
    rows: str = ""
    row_seconds: float = 20.0


class Stage:
    """Use as a context. Processes are started when a group of figures needs them."""

    def __init__(
        self, place: Place, material: Material, generators: Generators, say: Say, skip: int, choice: Choice = Choice()
    ) -> None:
        """`skip`: interactive and bulk texts that earlier rounds have sent."""
        self.choice = choice
        self.say = say
        self.place = place
        self.material = material
        self.cores = devices.cores()
        width = ServiceSettings().width
        #: (streams, threads of each) that an engine may use this machine with: one core a call, or all a call may have.
        self.shapes = sorted({(self.cores, 1), (max(1, self.cores // width), width)})
        self.saturating = _SATURATING * self.cores
        self._generators = generators
        self._stack = contextlib.ExitStack()
        self._interactive = itertools.islice(itertools.cycle(material.interactive), skip, None)
        self._bulk = itertools.islice(itertools.cycle(material.bulk), skip, None)

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def interactive(self, count: int) -> list[str]:
        """The next texts."""
        return list(itertools.islice(self._interactive, count))

    def bulk(self, count: int) -> list[str]:
        return list(itertools.islice(self._bulk, count))

    @functools.cached_property
    def service(self) -> psutil.Process:
        return psutil.Process(self._running.process.pid)

    @property
    def address(self) -> str:
        return self._running.address

    @property
    def metrics(self) -> str:
        """The URL of the service's metrics."""
        return self._running.metrics

    @functools.cached_property
    def bare(self) -> Child:
        return self.child("tests.benchmarks.online.bare", str(self.place.store.files.root), self.place.first)

    def child(self, module: str, *arguments: str) -> Child:
        """A process that ends with this stage."""
        return self._stack.enter_context(Child(module, *arguments))

    @functools.cached_property
    def capacity(self) -> float:
        """C: texts per second that the latency lane answers when it never waits for work."""
        return self.saturate(_CAPACITY_SECONDS)

    def saturate(self, seconds: float) -> float:
        """Texts per second of a load that never lets the latency lane wait for work."""
        plan = Plan(
            address=self.address,
            texts=self.interactive(min(len(self.material.interactive), 5_000)),
            seconds=seconds,
            in_flight=self.saturating,
            priority="REAL_TIME",
        )
        calls = self.run("saturating", plan)
        began = calls.due[0]
        return self.measured("latency lane, texts/s", calls.rate(began + SETTLE_SECONDS, began + seconds))

    def run(self, name: str, plan: Plan) -> Calls:
        """One load alone. Raises: CannotMeasure."""
        (calls,) = self.run_together([name], [plan], [0.0])
        return calls

    def run_together(self, names: Sequence[str], plans: Sequence[Plan], starts: Sequence[float]) -> list[Calls]:
        """Loads at once, each from `starts` seconds on. Raises: CannotMeasure."""
        # Other servers answer some loads.
        served = "_running" in vars(self) and any(plan.address == self.address for plan in plans)
        watch = Watch(self.service) if served else None
        several = load.run_together(plans, starts, watch)
        for name, calls in zip(names, several, strict=True):
            if not len(calls.due):
                raise CannotMeasure(f"{name}: no call was sent")
            self._generators.note(name, calls)
            self.say(f"  {name}: {_in_words(calls)}")
        if watch:
            shares = watch.shares(several)
            self._generators.cores.setdefault(", ".join(names), []).append(shares)
            self.say(f"    of a core: {shares}")
        return several

    def measured(self, name: str, value: float) -> float:
        """Say a number on which figures rest."""
        self.say(f"  {name}: {value:.4g}")
        return value

    @functools.cached_property
    def _running(self) -> RunningService:
        running = self._stack.enter_context(replicas.replica(self.place, **SETTINGS))
        replicas.settle(running.address)
        _check_path(running.address, scoring_pb2.REAL_TIME, scoring_pb2.LATENCY)
        _check_path(running.address, scoring_pb2.BATCH, scoring_pb2.THROUGHPUT)
        return running


def _check_path(address: str, priority: scoring_pb2.Priority, path: scoring_pb2.Path) -> None:
    """Raises: CannotMeasure when a call is not answered by the lane whose speed is in question."""
    with grpc.insecure_channel(address) as channel:
        request = scoring_pb2.ScoreRequest(texts=["where is my card"], priority=priority)
        took = ScoringServiceStub(channel).Score(request, timeout=10).path
    if took != path:
        names = scoring_pb2.Priority.Name(priority), scoring_pb2.Path.Name(took)
        raise CannotMeasure("a request of priority {} took the {} path".format(*names))


def _in_words(calls: Calls) -> str:
    ended = ", ".join(f"{count} of status {status}" for status, count in statuses(calls).items())
    good = calls.milliseconds[calls.answered].tolist()
    answers = f"answers p50 {quantile(good, 0.5):.2f} p95 {quantile(good, 0.95):.2f} ms; " if good else ""
    late = f"sends {calls.late_ms:.2f} ms late at p99" + (" (TOO LATE)" if calls.late_ms > LATE_MS else "")
    return f"{ended}; {answers}generator {calls.generator_share:.0%} of a core, {late}"

"""Settings of one serving process. Read once, in `__main__`; documented in ARCHITECTURE.md."""

from collections.abc import Mapping
from dataclasses import dataclass

from shared_model.devices import HALF_PRECISION, cores
from shared_model.settings import POSITIVE, Check, setting
from shared_model.types import Device, Precision, ServingPath


def _is_address(value: str) -> bool:
    host, _, port = value.rpartition(":")
    return bool(host) and port.isdigit() and int(port) < 65536


_ADDRESS = Check(_is_address, "HOST:PORT")
_NOT_NEGATIVE = Check(lambda value: value >= 0, "0 or more")


@dataclass(frozen=True)
class ServiceSettings:
    grpc_address: str = setting("127.0.0.1:50051", "Where gRPC listens; port 0 picks a free one.", _ADDRESS)
    metrics_address: str = setting("127.0.0.1:9464", "Where Prometheus scrapes; port 0 picks a free one.", _ADDRESS)
    reflection: bool = setting(False, "Serve gRPC reflection, for grpcurl and the like.")
    release: str = setting("", "Release to serve, whatever is promoted; empty means the active one.")
    threads: int = setting(0, "Cores one call of an engine uses; 0 means all of this process's.", _NOT_NEGATIVE)
    probe_seconds: float = setting(30.0, "Longest probe of a release before it may serve here.", POSITIVE)
    precomputed: bool = setting(True, "Answer from published scores where the release scored the same text.")
    precomputed_timeout_ms: float = setting(2.0, "Longest wait for Redis in a precomputed look-up.", POSITIVE)
    harvest: bool = setting(True, "Let idle lanes take deferred requests.")
    latency_below_ms: int = setting(100, "A timeout below this makes a request latency work.", POSITIVE)
    throughput_above_ms: int = setting(1000, "A timeout above this makes a request throughput work.", POSITIVE)
    latency_concurrency: int = setting(64, "Texts the latency lane holds at once.", POSITIVE)
    dynamic_concurrency: int = setting(256, "Texts the dynamic lane holds at once.", POSITIVE)
    throughput_concurrency: int = setting(256, "Texts the throughput lane holds at once.", POSITIVE)
    max_batch_rows: int = setting(64, "Rows of a dynamic or throughput batch, at most.", POSITIVE)
    token_budget: int = setting(2048, "Tokens of a throughput batch, at most, padding included.", POSITIVE)
    interactive_unit_ms: float = setting(10.0, "Longest throughput unit while interactive work is about.", POSITIVE)
    max_delay_ms: float = setting(50.0, "Longest a dynamic request is held for company.", POSITIVE)

    @property
    def width(self) -> int:
        return self.threads or cores()


@dataclass(frozen=True)
class Lane:
    """A service level. `target_seconds` is its p95 target, `target_rate` its requests per second; 0 means none.

    `assumed_timeout` (seconds) orders a request that came without one; such a request is never refused for it.
    """

    path: ServingPath
    precision: Precision
    max_rows: int
    token_budget: int
    max_concurrent: int
    assumed_timeout: float
    target_seconds: float = 0.0
    target_rate: float = 0.0


def lanes(settings: ServiceSettings, device: Device) -> dict[ServingPath, Lane]:
    """The lanes in order of urgency. On CPU the dynamic lane runs INT8, on a GPU half precision."""
    half = HALF_PRECISION[device]
    dynamic = Precision.INT8 if device is Device.CPU else half
    rows, budget = settings.max_batch_rows, settings.token_budget
    table = (
        Lane(ServingPath.LATENCY, Precision.INT8, 1, budget, settings.latency_concurrency, 0.05, 0.05, 50.0),
        Lane(ServingPath.DYNAMIC, dynamic, rows, budget, settings.dynamic_concurrency, 0.25),
        Lane(ServingPath.THROUGHPUT, half, rows, budget, settings.throughput_concurrency, 0.5, 0.5, 1000.0),
        # Deferred work has a lane of its own, last in line; only the harvester fills it.
        Lane(ServingPath.DEFERRED, half, rows, budget, settings.throughput_concurrency, 3600.0),
    )
    return {lane.path: lane for lane in table}


def variants(lanes: Mapping[ServingPath, Lane], half_device: Device) -> dict[Precision, Device]:
    """What the lanes run on: INT8 on CPU, half precision on `half_device`."""
    precisions = {lane.precision for lane in lanes.values()}
    return {it: Device.CPU if it is Precision.INT8 else half_device for it in sorted(precisions)}

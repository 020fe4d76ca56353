"""Settings of one serving process, documented in README.md."""

from collections.abc import Mapping
from dataclasses import dataclass

from realtime_service.settings.board import BoardSettings
from realtime_service.settings.http import ADDRESS, HttpSettings
from realtime_service.settings.lanes import LATENCY, NOT_NEGATIVE, SHARE, THROUGHPUT, LaneSettings
from shared_model.addresses import is_loopback
from shared_model.devices import HALF_PRECISION, cores
from shared_model.errors import SettingError
from shared_model.settings import POSITIVE, Check, group, setting
from shared_model.types import WHOLE, Device, Precision, ServingPath, Spread

#: The lanes a caller's request can take, most urgent first.
SERVED = (ServingPath.LATENCY, ServingPath.DYNAMIC, ServingPath.THROUGHPUT)
#: The value of `lanes` for a router, which serves no lane itself.
NO_LANES = "none"
_CUDA = "cuda:"
#: The most rows of calls in which each text gets the bits of a single one.
SINGLE_ROWS = 2


def _names_devices(value: str) -> bool:
    numbers = value.removeprefix(_CUDA).split(",")
    listed = value.startswith(_CUDA) and all(map(str.isdecimal, numbers)) and len(set(numbers)) == len(numbers)
    return value in ("auto", "cpu") or listed


def _names_lanes(value: str) -> bool:
    names = value.split(",")
    return names == [NO_LANES] or (set(names) <= set(SERVED) and len(set(names)) == len(names))


_DEVICES = Check(_names_devices, "auto, cpu, or GPUs by their numbers, as cuda:0,1")
_LANES = Check(_names_lanes, f"some of {','.join(SERVED)}")
_SAID = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_AUTO_OR_SAID = Check(lambda value: value == "auto" or value.lower() in _SAID, "auto, true or false")
_LOG = Check(lambda value: value in ("text", "json"), "text or json")
_AUTH = Check(lambda value: value in ("optional", "required"), "optional or required")


@dataclass(frozen=True)
class ServiceSettings:
    grpc_address: str = setting("127.0.0.1:50051", "Where gRPC listens; port 0 picks a free one.", ADDRESS)
    metrics_address: str = setting(
        "127.0.0.1:9464", "Where Prometheus scrapes; port 0 picks a free one. All workers are on one page.", ADDRESS
    )
    advertised_host: str = setting("", "Where other hosts find this one; empty: where gRPC listens.")
    log_format: str = setting(
        "text", "How the log is written; json: an object a line, with the ids of request, trace and caller.", _LOG
    )
    reflection: str = setting(
        "auto", "Serve gRPC reflection, for grpcurl and the like; auto: where only this host can call.", _AUTO_OR_SAID
    )
    release: str = setting("", "Release to serve, whatever is promoted; empty means the active one.")
    models: str = setting("", "Models to serve beside the default one, by comma; empty: each that is promoted.")
    models_megabytes: float = setting(
        1024.0,
        "Without TANDEM_MODELS: bytes of the files of those that are loaded; the least recently used others are loaded "
        "when a call asks for them. In memory a model takes several times its files.",
        POSITIVE,
    )
    lanes: str = setting(",".join(SERVED), "Which lanes this process serves.", _LANES)
    workers: int = setting(0, "Supervised worker processes; 0 means what the lanes' table says here.", NOT_NEGATIVE)
    threads: int = setting(0, "Cores one call of an engine uses; 0 means what the lanes' table says.", NOT_NEGATIVE)
    devices: str = setting(
        "auto",
        "cpu; GPUs by number, as cuda:0,1; auto: all that are here. Each GPU has a worker process of its own, which "
        "runs CPU lanes on its share of the cores.",
        _DEVICES,
    )
    probe_seconds: float = setting(90.0, "Longest canary check of a release before it may serve here.", POSITIVE)
    keep_previous_seconds: float = setting(
        600.0, "How long a replaced release stays loaded for a rollback; 0: not at all.", NOT_NEGATIVE
    )
    precomputed: bool = setting(True, "Answer from published scores where the release scored the same text.")
    precomputed_timeout_ms: float = setting(2.0, "Longest wait for Redis in a precomputed look-up.", POSITIVE)
    harvest: bool = setting(True, "Let idle lanes take deferred requests.")
    nightly_expected: str = setting(
        "auto", "Whether a nightly run is to publish every day, which alerts watch; auto: once one has.", _AUTO_OR_SAID
    )
    latency_below_ms: int = setting(100, "A timeout below this makes a request latency work.", POSITIVE)
    throughput_above_ms: int = setting(1000, "A timeout above this makes a request throughput work.", POSITIVE)
    quota: float = setting(
        0.0,
        "Texts a second of one caller, on all replicas together; 0 means no limit. "
        "A long text counts as one for each 256 bytes, and as 8 at most.",
        NOT_NEGATIVE,
    )
    inflight_megabytes: float = setting(64.0, "Bytes of requests under way; more are refused.", POSITIVE)
    inflight_caller_share: float = setting(0.25, "The share of them that one caller may hold.", SHARE)
    max_streams: int = setting(512, "Calls and streams of one connection at once.", POSITIVE)
    max_calls: int = setting(
        4096, "Calls and streams of all connections at once, one caller's at most half; more are refused.", POSITIVE
    )
    stream_idle_seconds: float = setting(
        600.0, "A stream of requests or results on which nothing happens ends after so long; 0: never.", NOT_NEGATIVE
    )
    stream_unread_seconds: float = setting(
        60.0, "A stream ends after its client has not read an answer for so long; 0: never.", NOT_NEGATIVE
    )
    connection_idle_seconds: float = setting(600.0, "A connection without calls is closed after so long.", POSITIVE)
    connection_age_seconds: float = setting(3600.0, "An older connection takes no new calls.", POSITIVE)
    connection_grace_seconds: float = setting(21600.0, "How long its calls and streams may go on.", POSITIVE)
    auth: str = setting("optional", "Whether every call needs a valid token; health checks never do.", _AUTH)
    token_keys: str = setting(
        "", "Public keys for callers' tokens: a file, JWKS or PEM, or the URL of a JWKS; empty: tokens are ignored."
    )
    token_audience: str = setting("", "The audience (`aud`) that a token must name; empty: any.")
    token_issuer: str = setting("", "The issuer (`iss`) that a token must name; empty: any.")
    token_max_hours: float = setting(24.0, "Longest lifetime of a token.", POSITIVE)
    interactive_unit_ms: float = setting(20.0, "Longest bulk batch soon after an interactive request.", POSITIVE)
    throughput_tensor_parallel: int = setting(
        1, "GPUs that compute each batch of half precision together, for a model that does not fit one.", POSITIVE
    )
    latency_pipeline_parallel: int = setting(
        1, "Stages that the latency lane's model is cut into, each on its own cores, or its own GPU.", POSITIVE
    )
    http: HttpSettings = group(HttpSettings())
    board: BoardSettings = group(BoardSettings())
    latency: LaneSettings = group(LATENCY)
    dynamic: LaneSettings = group(LaneSettings())
    throughput: LaneSettings = group(THROUGHPUT)

    def __post_init__(self) -> None:
        if self.latency_below_ms > self.throughput_above_ms:
            raise SettingError(
                f"TANDEM_LATENCY_BELOW_MS='{self.latency_below_ms}': expected at most "
                f"TANDEM_THROUGHPUT_ABOVE_MS, which is {self.throughput_above_ms}"
            )
        if self.token_required and not self.token_keys:
            raise SettingError("TANDEM_AUTH='required': needs TANDEM_TOKEN_KEYS, the keys that tokens are verified by")

    @property
    def served(self) -> tuple[ServingPath, ...]:
        """The lanes this process serves, most urgent first."""
        return tuple(path for path in SERVED if path in self.lanes.split(","))

    @property
    def gpus(self) -> tuple[int, ...] | None:
        """The GPUs to use; None for all that are here."""
        if self.devices == "auto":
            return None
        return tuple(map(int, self.devices.removeprefix(_CUDA).split(","))) if self.devices != "cpu" else ()

    @property
    def reflects(self) -> bool:
        """Whether gRPC reflection is served; `auto`: on a loopback address only."""
        return self.local if self.reflection == "auto" else _SAID[self.reflection.lower()]

    @property
    def expects_nightly(self) -> bool | None:
        """Whether a nightly run is to publish every day; None: once one has."""
        return None if self.nightly_expected == "auto" else _SAID[self.nightly_expected.lower()]

    @property
    def token_required(self) -> bool:
        return self.auth == "required"

    @property
    def local(self) -> bool:
        """Whether gRPC, and HTTP, listen where only this host can call."""
        return all(is_loopback(it.rpartition(":")[0]) for it in (self.grpc_address, self.http.address) if it)

    @property
    def width(self) -> int:
        """Cores one call of an engine uses in this process."""
        return self.threads or min(self.leading.threads or cores(), cores())

    @property
    def leading(self) -> LaneSettings:
        """The lane whose workers × threads divide this host: the most urgent served one with workers. A router needs
        only one process."""
        served = [self.lane(path) for path in self.served] or [LaneSettings()]
        return next((lane for lane in served if lane.workers), served[0])

    def lane(self, path: ServingPath) -> LaneSettings:
        found: LaneSettings = getattr(self, path)
        return found


@dataclass(frozen=True)
class Lane:
    """A service level. `target_seconds`: p95 target; `target_rate`: requests per second; 0 for no target.

    `assumed_timeout` (seconds): orders a request without a timeout, and never refuses one. `max_delay` (seconds): bound
    of the batching delay. `load_target`: utilisation above which an alert is raised, 0 for never; it refuses nothing.
    """

    path: ServingPath
    precision: Precision
    max_rows: int
    token_budget: int
    max_concurrent: int
    assumed_timeout: float
    target_seconds: float = 0.0
    target_rate: float = 0.0
    max_delay: float = 0.0
    load_target: float = 0.0

    @property
    def of_singles(self) -> bool:
        """Whether each text gets the bits of a single one, by the engine's graphs for those."""
        return self.max_rows <= SINGLE_ROWS

    def rows(self, tokens: int) -> int:
        """The most rows of a batch of texts of this padded width."""
        return max(1, min(self.max_rows, self.token_budget // tokens))


def lanes(settings: ServiceSettings, device: Device) -> dict[ServingPath, Lane]:
    """The served lanes, in order of urgency.

    Beside the throughput lane there is a deferred lane, the last one; only the backfill worker fills it.
    """
    table = {path: _lane(path, settings.lane(path), device) for path in settings.served}
    if throughput := table.get(ServingPath.THROUGHPUT):
        table[ServingPath.DEFERRED] = Lane(
            ServingPath.DEFERRED,
            throughput.precision,
            throughput.max_rows,
            throughput.token_budget,
            throughput.max_concurrent,
            assumed_timeout=3600.0,
        )
    return table


def _lane(path: ServingPath, numbers: LaneSettings, device: Device) -> Lane:
    half = HALF_PRECISION[device]
    automatic = Precision.INT8 if device is Device.CPU else half
    return Lane(
        path,
        {"int8": Precision.INT8, "half": half, "auto": automatic}[numbers.precision],
        numbers.max_rows,
        numbers.token_budget,
        numbers.concurrency,
        numbers.assumed_timeout_ms / 1000,
        target_seconds=numbers.p95_ms / 1000,
        target_rate=numbers.rate,
        max_delay=numbers.max_delay_ms / 1000,
        load_target=numbers.load_target,
    )


def variants(lanes: Mapping[ServingPath, Lane], half_device: Device) -> dict[Precision, Device]:
    """The device of each precision, the most urgent lane's first: INT8 on CPU, half precision on `half_device`."""
    precisions = dict.fromkeys(lane.precision for lane in lanes.values())
    return {it: Device.CPU if it is Precision.INT8 else half_device for it in precisions}


def spreads(
    settings: ServiceSettings, lanes: Mapping[ServingPath, Lane], variants: Mapping[Precision, Device], gpus: int
) -> dict[Precision, Spread]:
    """How each precision's model is spread on a process with so many GPUs. Raises: SettingError."""
    found = dict.fromkeys(variants, WHOLE)
    for path, kind, name in (
        (ServingPath.THROUGHPUT, "ranks", "TANDEM_THROUGHPUT_TENSOR_PARALLEL"),
        (ServingPath.LATENCY, "stages", "TANDEM_LATENCY_PIPELINE_PARALLEL"),
    ):
        count = settings.throughput_tensor_parallel if kind == "ranks" else settings.latency_pipeline_parallel
        if count == 1 or path not in lanes:
            continue
        precision = lanes[path].precision
        on_cores = variants[precision] is Device.CPU and kind == "stages"
        most, what = (settings.width, "cores") if on_cores else (gpus, "GPUs")
        if count > most:
            raise SettingError(f"{name}='{count}': expected at most the number of {what} here, which is {most}")
        if found[precision] is not WHOLE:
            raise SettingError(
                f"{name}='{count}': the {path} lane computes in {precision}, which TANDEM_THROUGHPUT_TENSOR_PARALLEL "
                "splits already; set one of them"
            )
        found[precision] = Spread(ranks=count) if kind == "ranks" else Spread(stages=count)
    return found


def placement(device: Device, spread: Spread, devices: str) -> str:
    """Where a model computes, for people. `devices`: as in the settings."""
    named = devices if device is Device.CUDA and devices.startswith(_CUDA) else str(device)
    if spread.ranks > 1:
        return f"{named} in {spread.ranks} ranks"
    return f"{named} in {spread.stages} stages" if spread.stages > 1 else named


def address_taken(address: str, why: str, variable: str = "TANDEM_GRPC_ADDRESS") -> SettingError:
    return SettingError(f"{variable}={address}: cannot listen there: {why}")

"""Settings of one lane, and what the lanes of the service levels have instead of the defaults."""

import math
from dataclasses import dataclass

from shared_model.settings import POSITIVE, Check, setting

NOT_NEGATIVE = Check(lambda value: 0 <= value < math.inf, "0 or more")
SHARE = Check(lambda value: 0 <= value <= 1, "a share from 0 to 1")
_PRECISION = Check(lambda value: value in ("int8", "half", "auto"), "int8, half or auto")


@dataclass(frozen=True)
class LaneSettings:
    """The numbers of one lane. `workers` and `threads` are those of a large host; `process.cores` scales them down."""

    precision: str = setting(
        "auto", "int8; half: FP16 on a GPU, BF16 on CPU; auto: int8 on CPU, half on a GPU.", _PRECISION
    )
    max_rows: int = setting(64, "Rows of a batch, at most.", POSITIVE)
    token_budget: int = setting(2048, "Tokens of a batch, at most, padding included.", POSITIVE)
    max_delay_ms: float = setting(50.0, "Longest batching delay of a request.", NOT_NEGATIVE)
    concurrency: int = setting(256, "Texts the lane holds at once.", POSITIVE)
    load_target: float = setting(0.0, "Utilisation above which an alert is raised; 0 means never.", SHARE)
    p95_ms: float = setting(0.0, "p95 target; 0 means the request's own deadline.", NOT_NEGATIVE)
    rate: float = setting(0.0, "Target of requests per second; 0 means no target.", NOT_NEGATIVE)
    assumed_timeout_ms: float = setting(250.0, "Orders a request without a timeout in its lane's queue.", POSITIVE)
    workers: int = setting(0, "Worker processes of a host for this lane; 0 means one.", NOT_NEGATIVE)
    threads: int = setting(0, "Cores of each of them; 0 means all.", NOT_NEGATIVE)


LATENCY = LaneSettings(
    precision="int8", max_rows=1, max_delay_ms=0.0, concurrency=64, load_target=0.60, p95_ms=50.0, rate=50.0,
    assumed_timeout_ms=50.0, workers=8, threads=4,
)  # fmt: skip
THROUGHPUT = LaneSettings(
    precision="half", load_target=0.95, p95_ms=500.0, rate=1000.0, assumed_timeout_ms=500.0, workers=4, threads=8
)

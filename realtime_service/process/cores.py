"""The number of workers on a host, and the cores of each."""

import logging
import math
from collections.abc import Sequence

from realtime_service.settings import ServiceSettings
from shared_model.errors import SettingError

Cores = tuple[int, ...]

#: Estimated memory of a worker: about 0.7 GB with the default release, and as much again while it loads other weights.
WORKER_BYTES = 1.5e9

log = logging.getLogger(__name__)


def worker_cores(
    settings: ServiceSettings, available: Sequence[int], memory: float = math.inf, on_gpus: int = 0
) -> list[Cores]:
    """The cores of each worker: disjoint, equal in number, in order. `memory`: bytes for all workers together.

    Without `settings.workers` each group of GPUs has a worker (`on_gpus`: how many); without GPUs the leading lane's
    table is scaled down: threads = min(table, cores), workers = min(table, cores ÷ threads, memory ÷ `WORKER_BYTES`). A
    set number of workers is not lowered for memory, because another release may need less, but logged. Raises:
    SettingError for more workers than the cores allow.
    """
    count = settings.workers or min(on_gpus, len(available))
    if not count:
        table, cores = settings.leading, len(available)
        threads = settings.threads or min(table.threads or cores, cores)
        count = int(max(1, min(table.workers or 1, cores // threads, memory // WORKER_BYTES)))
    if count > 1 and count * WORKER_BYTES > memory:
        log.warning(
            "TANDEM_WORKERS=%d: %d workers need about %.1f GB, and the memory limit is %.1f GB: they may be killed",
            count, count, count * WORKER_BYTES / 1e9, memory / 1e9,
        )  # fmt: skip
    needed = count * max(1, settings.threads)
    if settings.workers and needed > len(available):
        raise SettingError(
            f"TANDEM_WORKERS='{count}': expected a number that fits {len(available)} cores; "
            f"{count} workers of {max(1, settings.threads)} threads need {needed}"
        )
    share = len(available) // count
    return [tuple(available[index * share : (index + 1) * share]) for index in range(count)]

"""How many workers a host carries, and which cores each of them owns."""

import logging
import math
from collections.abc import Sequence

from realtime_service.settings import ServiceSettings
from shared_model.errors import SettingError

Cores = tuple[int, ...]

#: Memory that one worker is reckoned to need: about 1 GB with the default release, and half as much again while it
#: loads the next release beside it.
WORKER_BYTES = 1.5e9

log = logging.getLogger(__name__)


def worker_cores(settings: ServiceSettings, available: Sequence[int], memory: float = math.inf) -> list[Cores]:
    """The cores of each worker: disjoint, alike in number, in order. `memory`: bytes that all of them may take.

    Without `settings.workers` the table of the leading lane counts, scaled down: threads = min(table, cores), workers
    = min(table, cores ÷ threads, memory ÷ what a worker needs). Raises: SettingError for more workers than there are
    cores for. A number that is set is not lowered for memory, as another release may need less: it is warned of.
    """
    count = settings.workers or _from_table(settings, len(available), memory)
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


def _from_table(settings: ServiceSettings, cores: int, memory: float) -> int:
    table = settings.leading
    threads = settings.threads or min(table.threads or cores, cores)
    return int(max(1, min(table.workers or 1, cores // threads, memory // WORKER_BYTES)))

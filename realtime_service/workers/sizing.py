"""How many workers a host carries, and which cores each of them owns."""

from collections.abc import Sequence

from realtime_service.settings import ServiceSettings
from shared_model.errors import SettingError

Cores = tuple[int, ...]


def worker_cores(settings: ServiceSettings, available: Sequence[int]) -> list[Cores]:
    """The cores of each worker: disjoint, alike in number, in order.

    Without `settings.workers` the table of the leading lane counts, scaled down: threads = min(table, cores), workers
    = min(table, cores ÷ threads). Raises: SettingError for more workers than there are cores for.
    """
    count = settings.workers or _from_table(settings, len(available))
    needed = count * max(1, settings.threads)
    if settings.workers and needed > len(available):
        raise SettingError(
            f"TANDEM_WORKERS='{count}': expected a number that fits {len(available)} cores; "
            f"{count} workers of {max(1, settings.threads)} threads need {needed}"
        )
    share = len(available) // count
    return [tuple(available[index * share : (index + 1) * share]) for index in range(count)]


def _from_table(settings: ServiceSettings, cores: int) -> int:
    table = settings.leading
    threads = settings.threads or min(table.threads or cores, cores)
    return max(1, min(table.workers or 1, cores // threads))

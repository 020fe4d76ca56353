"""The GPUs of each worker, by TANDEM_DEVICES."""

import os
from collections.abc import Sequence

from realtime_service.settings import ServiceSettings
from shared_model import devices
from shared_model.errors import SettingError

Gpus = tuple[int, ...]

#: The variable by which the driver and torch know what they may use.
VISIBLE = "CUDA_VISIBLE_DEVICES"


def worker_gpus(settings: ServiceSettings, here: int) -> list[Gpus]:
    """A worker for each GPU, or for as many as compute a batch together. Empty without GPUs. `here`: GPUs that this
    process may use. They come in the order of their NUMA nodes, as the cores of workers do.

    Raises: SettingError for a GPU that is not here.
    """
    named = settings.gpus
    numbers = tuple(range(here)) if named is None else named
    if missing := [number for number in numbers if number >= here]:
        raise SettingError(
            f"TANDEM_DEVICES='{settings.devices}': there is no GPU {missing[0]}; this host has {here}, counted from 0"
        )
    ranks, numbers = settings.throughput_tensor_parallel, tuple(sorted(numbers, key=devices.gpu_node))
    return [numbers[start : start + ranks] for start in range(0, len(numbers) - ranks + 1, ranks)]


def environment(gpus: Sequence[Gpus], index: int) -> dict[str, str]:
    """Variables of a worker, so that it sees its GPUs alone. Where there are more workers, several share one."""
    if not gpus:
        return {}
    mine = gpus[index % len(gpus)]
    seen = os.environ.get(VISIBLE, "")
    names = seen.split(",") if seen else None
    return {
        VISIBLE: ",".join(names[number] if names else str(number) for number in mine),
        "TANDEM_DEVICES": f"cuda:{','.join(map(str, mine))}",
    }


def hide(settings: ServiceSettings) -> None:
    """Let this process and its workers see no GPU if the settings say so. Before the driver is asked."""
    if settings.gpus == ():
        os.environ[VISIBLE] = "-1"

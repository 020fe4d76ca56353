"""Ranks for tests of arithmetic: four processes that compute batches as 2, 3 and 4 ranks, with every packed family.

They are forked from one that has imported torch, because each import costs seconds of CPU.

    python -m tests.shared_model.engines.forked_ranks FOLDER CONNECTION

FOLDER holds a model's files for each family.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socketpair

import numpy as np
from numpy.typing import NDArray

from shared_model.batches import Batch
from shared_model.engines import rank, rank_messages
from shared_model.types import Device, Precision

RANKS = (2, 3, 4)
_MOST = max(RANKS)


class ForkedRanks:
    """`files`: of a model for each family. Models need heads that all of RANKS divide."""

    def __init__(self, folder: Path, files: Mapping[str, Mapping[str, bytes]]) -> None:
        for family, contents in files.items():
            (folder / family).mkdir()
            for name, content in contents.items():
                (folder / family / name).write_bytes(content)
        ours, its = socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(folder), str(its.fileno())],
                pass_fds=[its.fileno()],
                env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            )
        self._connection = Connection(ours.detach())

    def score(self, family: str, ranks: int, batch: Batch) -> NDArray[np.float32]:
        """Raw outputs."""
        self._connection.send_bytes(f"{family} {ranks}".encode())
        self._connection.send_bytes(rank_messages.batch_to_bytes(batch))
        return rank_messages.raw_from_bytes(self._connection.recv_bytes())[0]

    def close(self) -> None:
        self._connection.close()
        self._process.wait()


def main() -> None:
    """The process that is forked: the first rank."""
    from shared_model.engines import torch_sharding  # noqa: F401 (imported once for all)
    from shared_model.engines.torch_engine import TorchEngine  # noqa: F401

    folder, connection = Path(sys.argv[1]), Connection(int(sys.argv[2]))
    store, parent, others = os.memfd_create("store"), os.getpid(), list[Connection]()
    for number in range(1, _MOST):
        mine, its = Pipe()
        if os.fork() == 0:
            rank.end_with(parent)
            _serve(number, folder, store, its, [])
        others.append(mine)
    _serve(0, folder, store, connection, others)


def _serve(number: int, folder: Path, store: int, connection: Connection, others: list[Connection]) -> None:
    """Until the test closes its end."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    from shared_model.engines.torch_engine import TorchEngine

    dist.init_process_group(
        "gloo", store=dist.FileStore(f"/proc/self/fd/{store}", _MOST), rank=number, world_size=_MOST
    )
    meshes = {ranks: DeviceMesh(str(Device.CPU), list(range(ranks))) for ranks in RANKS}
    engines: dict[tuple[str, int], TorchEngine] = {}
    for model in sorted(folder.iterdir()):
        files = {path.name: path.read_bytes() for path in model.iterdir()}
        for ranks in (it for it in RANKS if number < it):
            engines[model.name, ranks] = TorchEngine(files, Precision.FP32, Device.CPU, meshes[ranks])
    while True:
        try:
            chosen, batch = connection.recv_bytes(), connection.recv_bytes()
        except EOFError:
            os._exit(0)
        for other in others:
            other.send_bytes(chosen)
            other.send_bytes(batch)
        family, ranks = chosen.decode().split()
        if engine := engines.get((family, int(ranks))):
            raw = engine.start(rank_messages.batch_from_bytes(batch)).result()
            if number == 0:
                connection.send_bytes(rank_messages.raw_to_bytes(raw, 0.0))


if __name__ == "__main__":
    main()

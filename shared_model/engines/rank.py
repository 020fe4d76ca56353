"""One rank of a tensor-parallel engine. Started by `ranks`, never by hand.

    python -m shared_model.engines.rank TASK

TASK is a Task as JSON.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from shared_model.batches import Running
from shared_model.engines import rank_messages
from shared_model.engines.rank_messages import BEAT_SECONDS, SILENT_SECONDS, Facts, Kind, Task
from shared_model.errors import OutOfMemory
from shared_model.storage import one_line
from shared_model.types import Device

if TYPE_CHECKING:
    from shared_model.engines.torch_engine import TorchEngine

#: prctl(2).
_PR_SET_PDEATHSIG = 1


class _Link:
    """The connection to the engine. Two threads write to it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._one_writer = threading.Lock()

    def send(self, kind: Kind, content: bytes = b"") -> None:
        with self._one_writer:
            self._connection.send_bytes(rank_messages.message(kind, content))

    def receive(self) -> tuple[Kind, bytes]:
        """Raises: EOFError once the engine is closed."""
        return rank_messages.read(self._connection.recv_bytes())

    def has_request(self) -> bool:
        return self._connection.poll()

    def beat(self) -> None:
        with contextlib.suppress(OSError):
            while not threading.Event().wait(BEAT_SECONDS):
                self.send(Kind.BEAT)


def main(arguments: Sequence[str]) -> int:
    task = Task.from_json(arguments[0])
    end_with(task.parent)
    link = _Link(Connection(task.connection))
    try:
        from shared_model.engines import torch_engine  # noqa: F401 (takes seconds: the ranks wait for each other)

        link.send(Kind.STARTED)
        link.receive()
        engine = _open(task)
        link.send(Kind.OPENED, Facts(engine.batching, engine.hardware, engine.ahead).to_bytes())
        threading.Thread(target=link.beat, daemon=True, name="beat").start()
        _serve(engine, link, first=task.rank == 0)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # The engine is closed, or its process has ended.
        return 0
    except OutOfMemory as error:
        link.send(Kind.NO_MEMORY, str(error).encode())
    except Exception as error:  # noqa: BLE001 (the engine reports it and ends all ranks)
        link.send(Kind.FAILED, f"{type(error).__name__}: {one_line(error)}".encode())
    return 1


def end_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it is gone, however it ended: this one may then
    be waiting for other ranks, or be stopped."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It ended before that.
        os._exit(1)


def _open(task: Task) -> "TorchEngine":
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from shared_model.engines.torch_engine import TorchEngine, use_gpu

    if task.device is Device.CUDA:
        use_gpu(task.gpu)
    dist.init_process_group(
        "nccl" if task.device is Device.CUDA else "gloo",
        store=dist.FileStore(f"/proc/self/fd/{task.store}", task.ranks),  # type: ignore[attr-defined]
        rank=task.rank,
        world_size=task.ranks,
        # A rank that waits for longer has lost another one. Only the time between ranks counts, which do equal work.
        timeout=timedelta(seconds=SILENT_SECONDS),
    )
    files = {name: _contents(descriptor) for name, descriptor in task.files.items()}
    return TorchEngine(files, task.precision, task.device, init_device_mesh(task.device, (task.ranks,)))


def _contents(descriptor: int) -> bytes:
    with open(f"/proc/self/fd/{descriptor}", "rb") as file:
        return file.read()


def _serve(engine: "TorchEngine", link: _Link, first: bool) -> None:
    """Answer requests in their order, until EOFError. All ranks get the same ones."""
    running = deque[Running]()

    def answer_oldest() -> None:
        batch = running.popleft()
        raw = batch.result()
        link.send(Kind.DONE, rank_messages.raw_to_bytes(raw, batch.seconds) if first else b"")

    while True:
        while running and (len(running) > engine.ahead or not link.has_request()):
            answer_oldest()
        kind, content = link.receive()
        if kind is Kind.SCORE:
            running.append(engine.start(rank_messages.batch_from_bytes(content)))
            continue
        while running:
            answer_oldest()
        link.send(Kind.DONE, str(engine.bulk_tokens()).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A tensor-parallel engine of which one rank is killed or stopped, or its own process.

    python -m tests.shared_model.engines.lost_ranks FOLDER

FOLDER holds a model's files. It opens an engine, prints the processes of its ranks, and waits.
"""

import os
import signal
import sys
import time
from pathlib import Path

from shared_model.batches import PackedBatch
from shared_model.engines.rank_group import Split
from shared_model.engines.tensor_parallel import TensorParallelEngine
from shared_model.errors import EngineLost
from shared_model.types import Device, Precision

SPLIT = Split(Precision.FP32, Device.CPU, ranks=2)


def loss_seconds(engine: TensorParallelEngine, batch: PackedBatch, number: signal.Signals) -> tuple[float, str]:
    """Until a batch under way fails once its last rank got this signal, and why it failed. Raises: AssertionError if it
    does not fail."""
    lost = engine.processes[-1]
    # It cannot end the batch before it gets the signal.
    os.kill(lost, signal.SIGSTOP)
    running, began = engine.start(batch), time.monotonic()
    os.kill(lost, number)
    try:
        running.result()
    except EngineLost as error:
        return time.monotonic() - began, str(error)
    raise AssertionError("the batch did not fail")


def gone(process: int) -> bool:
    """Whether it has ended, reaped by its parent or not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def main() -> None:
    files = {path.name: path.read_bytes() for path in Path(sys.argv[1]).iterdir()}
    engine = TensorParallelEngine(files, SPLIT)
    sys.stdout.write(" ".join(map(str, engine.processes)) + "\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()

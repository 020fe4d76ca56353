"""INT8 on CPU, three ways: one core a call (narrow), all cores a call (wide), and a core a stage (pipeline).

    python -m tests.benchmarks.devices.widths FOLDER WAY SECONDS

measures one way in a process of its own, and prints the figures as JSON. FOLDER holds a graph.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from shared_model import devices
from shared_model.encoding import TokenBatch
from shared_model.engine import open_engine
from shared_model.releases.store import Store
from shared_model.settings import StateSettings, load
from shared_model.types import Device, Precision, Spread
from tests.benchmarks.devices.models import SIZES
from tests.benchmarks.harness import REPOSITORY
from tests.shared_model import tiny_models

WAYS = ("narrow", "wide", "pipeline")
MINILM = "MiniLM"
#: Tokens of a text; calibration texts of models with random weights, of which only the speed counts.
_TOKENS, _CALIBRATED = 32, 8


@dataclass(frozen=True)
class Speed:
    """`milliseconds`: of a call alone, the median; `calls_per_second`: with as many in flight as run at once."""

    milliseconds: float
    calls_per_second: float
    megabytes: float


def measure(folder: Path, way: str, seconds: float) -> Speed:
    command = [sys.executable, "-m", __name__, str(folder.resolve()), way, str(seconds)]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True)
    return Speed(**json.loads(done.stdout))


def graph_folder(kept: Path, name: str) -> Path:
    """A model's INT8 graph: of the newest release, or with random weights. Made once."""
    folder = kept / name
    if not (folder / "model.bin").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in (_of_release() if name == MINILM else _of_random_weights(folder, name)).items():
            (folder / file).write_bytes(content)
    return folder


def _of_release() -> dict[str, bytes]:
    store = Store.from_settings(load(StateSettings))
    release = store.open(store.ids()[-1])
    files = release.manifest.variant(Precision.INT8, Device.CPU).files
    return {name: release.read(path) for name, path in files.items()}


def _of_random_weights(folder: Path, name: str) -> dict[str, bytes]:
    from shared_model.building import checkpoint, convert, embedding_tables
    from shared_model.building.recipes import Quantiser, Recipe
    from shared_model.encoding import Encoder

    loaded = checkpoint.load(tiny_models.make(folder / "checkpoint", "bert", **SIZES[name]))
    encoder = Encoder(loaded.files["tokenizer.json"], loaded.reads, release="")
    texts = encoder.encode_many(tiny_models.corpus()[:_CALIBRATED])
    graph = Quantiser(convert.to_openvino(loaded), texts, texts).apply(Recipe(_CALIBRATED))
    embedding_tables.look_up_first(graph)
    return convert.openvino_files(graph)


def main() -> None:
    folder, way, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    cores, process = devices.cores(), psutil.Process()
    threads, streams, stages = {"narrow": (1, cores, 1), "wide": (cores, 1, 1), "pipeline": (1, 1, cores)}[way]
    before = process.memory_full_info().uss
    files = {name: (folder / name).read_bytes() for name in ("model.xml", "model.bin")}
    engine = open_engine(Precision.INT8, Device.CPU, files, threads, streams, Spread(stages=stages))
    del files
    ids = np.random.default_rng(0).integers(5, 100, (1, _TOKENS))
    batch = TokenBatch(ids, np.ones_like(ids))

    def call() -> float:
        began = time.perf_counter()
        engine.score(batch)
        return time.perf_counter() - began

    engine.warm_up([(1, _TOKENS)])
    alone = median(_until(seconds / 2, call))
    # Compiling needs more than what stays.
    megabytes = (process.memory_full_info().uss - before) / 1e6
    with ThreadPoolExecutor(engine.streams) as callers:
        began = time.perf_counter()
        calls = sum(len(it.result()) for it in [callers.submit(_until, seconds, call) for _ in range(engine.streams)])
        rate = calls / (time.perf_counter() - began)
    sys.stdout.write(json.dumps(asdict(Speed(1e3 * alone, rate, megabytes))))


def _until(seconds: float, call: Callable[[], float]) -> list[float]:
    latest, found = time.perf_counter() + seconds, list[float]()
    while time.perf_counter() < latest:
        found.append(call())
    return found


if __name__ == "__main__":
    main()

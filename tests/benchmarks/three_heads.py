"""The cost of two further heads: a release with heads of 77, 10 and 2 outputs against one with the first alone.

Both are measured in turns: calls of single texts, each to a replica of its own; and CPU time of a night's rows in this
process, from the tokenizer to the data file, without Spark, which would only make the share smaller.
"""

import contextlib
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import redis
from scipy import stats

from batch_job.scoring import models, rows, windows
from batch_job.scoring.models import Model
from batch_job.scoring.options import ScoringOptions
from batch_job.shards import schemas
from batch_job.shards.shard_files import Target, write_file
from realtime_service.client import Client
from shared_model import demo_messages, devices
from shared_model.building import build, checkpoint
from shared_model.building.head import Head
from shared_model.commands.make_release import default_heads
from shared_model.evaluation import corpora
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.output import OutputKind
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from shared_model.types import Device, Precision, Priority
from tests.benchmarks import replicas
from tests.benchmarks.harness import CannotMeasure
from tests.benchmarks.replicas import Place

ROUNDS = 12
CALLS_P50, NIGHTLY = "three heads over one, batch-1 p50", "three heads over one, nightly CPU per row"
#: To each release in a round, and before, to warm it up.
_CALLS, _ROWS = 400, 512
_WARM_CALLS, _WARM_ROWS = 50, 128
_SEED = 20_261_124
#: Outputs of the second head, of several labels.
_SEVERAL = 10


@dataclass(frozen=True)
class Subject:
    """A release on both paths: the client of its replica, and the model as a nightly task opens it."""

    client: Client
    model: Model


def ratios(rounds: int = ROUNDS) -> dict[str, list[float]]:
    """The cost of three heads over that of one, less one, in each round; by CALLS_P50 and NIGHTLY.

    Each round has processes and engines of its own: where their memory lies makes some faster than others by more than
    a head costs. A round is the mean of two, in which another release is opened first: that one is the faster, by more
    than the heads cost, too.
    """
    found: dict[str, list[float]] = {CALLS_P50: [], NIGHTLY: []}
    texts = demo_messages.texts(_SEED)
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder:
        built = releases(Path(folder))
        for number in range(rounds):
            orders = [_in_order(built, first, texts, Path(folder, f"{number}-{first}")) for first in (0, 1)]
            for name, ratio in found.items():
                ratio.append(statistics.fmean(measured[name] for measured in orders))
    return found


def _in_order(built: Sequence[Release], first: int, texts: Iterator[str], folder: Path) -> dict[str, float]:
    """`measure` of new processes. `first`: the number of the release that is opened first."""
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        subjects = {
            number: stack.enter_context(opened(folder / str(number), built[number])) for number in (first, 1 - first)
        }
        for calls, count in ((_WARM_CALLS, _WARM_ROWS), (_CALLS, _ROWS)):
            measured = measure(subjects[0], subjects[1], list(itertools.islice(texts, count)), calls, folder)
    return measured


def measure(one: Subject, three: Subject, texts: Sequence[str], calls: int, folder: Path) -> dict[str, float]:
    """One round of `ratios`, with so many calls."""
    alone, together = calls_p50(one, three, texts[:calls])
    seconds = [night_seconds(subject.model, texts, folder) for subject in (one, three, three, one)]
    return {
        CALLS_P50: together / alone - 1,
        NIGHTLY: (seconds[1] + seconds[2]) / (seconds[0] + seconds[3]) - 1,
    }


def cost(measured: Mapping[str, Sequence[float]]) -> float:
    """The larger of the upper bounds of both paths."""
    return max(map(upper_bound, measured.values()))


def upper_bound(ratios: Sequence[float]) -> float:
    """The one-sided upper 95 % bound of their mean."""
    spread = statistics.stdev(ratios) / math.sqrt(len(ratios))
    return statistics.fmean(ratios) + float(stats.t.ppf(0.95, len(ratios) - 1)) * spread


def calls_p50(one: Subject, three: Subject, texts: Sequence[str]) -> tuple[float, float]:
    """Median seconds of a call to each. Each text goes to both, first to the one, then to the other. Raises:
    CannotMeasure where a call did not run alone."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for number, text in enumerate(texts):
        for place in (0, 1) if number % 2 else (1, 0):
            started = time.perf_counter()
            answer = (one, three)[place].client.score(text, priority=Priority.REAL_TIME)
            seconds[place].append(time.perf_counter() - started)
            if answer.batch_size != 1:
                raise CannotMeasure(f"a call had {answer.batch_size} rows, should run alone")
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def night_seconds(model: Model, texts: Sequence[str], folder: Path) -> float:
    """CPU seconds of scoring texts and writing their rows."""
    options = ScoringOptions(str(folder), model.release, Device.CPU, batch_rows=64, batch_tokens=2048)
    source = pa.record_batch({"id": [str(number) for number in range(len(texts))], "text": list(texts)})
    started = time.process_time()
    scored = windows.score_windows(iter([source]), lambda batch: batch.column("text").to_pylist(), model, options)
    written = (rows.score_rows(window, model) for window in scored)
    write_file(Target(str(folder), "2026-01-01", "bench", 1), schemas.SCORES, written, model.release)
    return time.process_time() - started


@contextlib.contextmanager
def opened(folder: Path, release: Release) -> Iterator[Subject]:
    """A replica of its own, with a Redis of its own, that serves a release; and an engine here."""
    store = Store(release.files.root)
    with RedisServer(StateSettings(state=folder)) as server, redis.Redis.from_url(server.url) as redis_client:
        pointer.promote(store, redis_client, release.id)
        place = Place(store, redis_client, server.url, release.id, release.id)
        alone = {"TANDEM_PRECOMPUTED": "false", "TANDEM_HARVEST": "false"}
        engine = release.engine(Precision.BF16, Device.CPU, devices.cores())
        with (
            contextlib.closing(engine),
            replicas.replica(place, **alone) as running,
            Client(running.address) as client,
        ):
            engine.score(models.HARMLESS)
            yield Subject(client, Model(release.id, release.heads, release.encoder(), engine))


def releases(folder: Path) -> list[Release]:
    """The release with one head and that with three, each in a store of its own, by the same recipe."""
    heads = compared_heads()
    return [_built(folder, "one", heads[:1]), _built(folder, "three", heads)]


def compared_heads() -> tuple[Head, Head, Head]:
    """The intents; ten labels, any number of them true; and a choice of two. The second is made of the first rows of
    the intents': how good it is, is not measured."""
    intent, _, choice = default_heads()
    several = replace(
        intent,
        name="several",
        kind=OutputKind.MULTI_LABEL,
        labels=intent.labels[:_SEVERAL],
        weight=intent.weight[:_SEVERAL],
        bias=intent.bias[:_SEVERAL],
    )
    return intent, several, choice


def _built(folder: Path, name: str, heads: Sequence[Head]) -> Release:
    source = checkpoint.with_heads(build.default_encoder(), heads)
    # The first recipe is taken, whatever INT8 loses.
    bounds = GateSettings(gate_min_agreement=0.01)
    texts = corpora.choose(source.output, source.reads)
    return build.make(Store(folder / name), source, name, texts, bounds, say=lambda line: None).release

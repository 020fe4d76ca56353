"""The cost of two further heads: a release with heads of 77, 10 and 2 outputs against one with the first alone.

Both run in this process, in turns: single texts, from the encoder to the bytes of the answer; and a night's rows, from
the tokenizer to the data file. The remaining parts of a call and of a run are the same for both, and are left out.
"""

import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from scipy import stats

from batch_job.scoring import models as nightly
from batch_job.scoring import rows, windows
from batch_job.scoring.options import ScoringOptions
from batch_job.shards import schemas
from batch_job.shards.shard_files import Target, write_file
from realtime_service.execution.device import Computed
from realtime_service.models import registry
from realtime_service.routing.policy import Decision
from realtime_service.serving import answer
from realtime_service.serving.score_response import score_response
from shared_model import demo_messages, devices
from shared_model.building import build, checkpoint
from shared_model.building.head import Head
from shared_model.commands.make_release import default_heads
from shared_model.encoding import collate
from shared_model.engine import Engine
from shared_model.evaluation import corpora
from shared_model.evaluation.gate_settings import GateSettings
from shared_model.output import OutputKind
from shared_model.releases.store import Release, Store
from shared_model.types import Device, Precision, ServingPath

ROUNDS = 15
SINGLE, NIGHTLY = "three heads over one, batch-1 p50", "three heads over one, nightly CPU per row"
#: Of each release in a round.
_CALLS, _ROWS = 300, 1_024
_SEED = 20_261_124
_WANTED = 3
_HERE = Decision(ServingPath.LATENCY, "here", "benchmark")
#: Numbers of outputs of the further heads: `several` labels, and a choice.
_SEVERAL = 10


@dataclass(frozen=True)
class Subject:
    """A release opened for both paths."""

    release: Release
    single: Engine
    batch: Engine

    @classmethod
    def opened(cls, release: Release) -> "Subject":
        width = devices.cores()
        engines = (release.engine(precision, Device.CPU, width) for precision in (Precision.INT8, Precision.BF16))
        return cls(release, *engines)

    def close(self) -> None:
        self.single.close()
        self.batch.close()


def ratios(rounds: int = ROUNDS) -> dict[str, list[float]]:
    """The cost of three heads over that of one, less one, in each round; by SINGLE and NIGHTLY."""
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder:
        one, three = (Subject.opened(it) for it in releases(Store(folder)))
        with closing(one), closing(three):
            return measure(one, three, Path(folder), rounds)


def measure(one: Subject, three: Subject, folder: Path, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {SINGLE: [], NIGHTLY: []}
    texts = demo_messages.texts(_SEED)
    for number in range(-1, rounds):
        batch = list(itertools.islice(texts, _ROWS))
        pair = (one, three) if number % 2 else (three, one)
        calls = in_turns(pair, batch[:_CALLS])
        costs = {subject.release.id: night_seconds(subject, batch, folder) for subject in pair}
        # The first round warms everything up.
        if number >= 0:
            found[SINGLE].append(calls[three.release.id] / calls[one.release.id] - 1)
            found[NIGHTLY].append(costs[three.release.id] / costs[one.release.id] - 1)
    return found


def upper_bound(ratios: Sequence[float]) -> float:
    """The one-sided upper 95 % bound of their mean."""
    spread = statistics.stdev(ratios) / math.sqrt(len(ratios))
    return statistics.fmean(ratios) + float(stats.t.ppf(0.95, len(ratios) - 1)) * spread


def in_turns(subjects: Sequence[Subject], texts: Sequence[str]) -> dict[str, float]:
    """The median seconds of a single text by release; each text goes to all of them, one after the other."""
    answering = [(subject.release.id, _answering(subject)) for subject in subjects]
    seconds: dict[str, list[float]] = {release: [] for release, _ in answering}
    for number, text in enumerate(texts):
        for release, answered in answering if number % 2 else reversed(answering):
            started = time.perf_counter()
            answered(text)
            seconds[release].append(time.perf_counter() - started)
    return {release: statistics.median(of) for release, of in seconds.items()}


def _answering(subject: Subject) -> Callable[[str], bytes]:
    release, encoder = subject.release, subject.release.encoder()
    model = registry.Model(release.id, release.heads, encoder, {})

    def answered(text: str) -> bytes:
        encoding = encoder.encode(text)
        scores = release.heads.scores(subject.single.score(collate([encoding]), True))
        computed = [Computed(scores[0], Precision.INT8, 1, 0.0, 0.0)]
        return score_response(answer.computed(model, [encoding], computed, _HERE, _WANTED), "id").SerializeToString()

    return answered


def night_seconds(subject: Subject, texts: Sequence[str], folder: Path) -> float:
    """CPU seconds of scoring texts and writing their rows."""
    release = subject.release
    model = nightly.Model(release.id, release.heads, release.encoder(), subject.batch)
    options = ScoringOptions(str(folder), release.id, Device.CPU, batch_rows=64, batch_tokens=2048, deduplicate=False)
    source = pa.record_batch({"id": [str(number) for number in range(len(texts))], "text": list(texts)})
    started = time.process_time()
    scored = windows.score_windows(iter([source]), lambda batch: batch.column("text").to_pylist(), model, options)
    written = (rows.score_rows(window, model) for window in scored)
    write_file(Target(str(folder), "2026-01-01", "bench", 1), schemas.SCORES, written, release.id)
    return time.process_time() - started


def releases(store: Store) -> list[Release]:
    """The release with one head and that with three, by the same recipe. The head of ten outputs, of several labels, is
    made of the first rows of the intents': how good it is, is not measured."""
    intent, *_, choice = default_heads()
    several = replace(
        intent,
        name="several",
        kind=OutputKind.MULTI_LABEL,
        labels=intent.labels[:_SEVERAL],
        weight=intent.weight[:_SEVERAL],
        bias=intent.bias[:_SEVERAL],
    )
    return [_built(store, "one", [intent]), _built(store, "three", [intent, several, choice])]


def _built(store: Store, name: str, heads: Sequence[Head]) -> Release:
    source = checkpoint.with_heads(build.default_encoder(), heads)
    # The first recipe is taken, whatever INT8 loses.
    bounds = GateSettings(gate_min_agreement=0.01)
    texts = corpora.choose(source.output, source.reads)
    return build.make(store, source, name, texts, bounds, say=lambda line: None).release

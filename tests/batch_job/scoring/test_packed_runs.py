"""Packed batches in the nightly run: cut by tokens while texts arrive, one ahead of the last result, halved where they
do not fit."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from batch_job.scoring import batching, windows
from batch_job.scoring.batching import Packed
from batch_job.scoring.models import Model
from batch_job.scoring.options import ScoringOptions
from batch_job.scoring.runner import HARMLESS, Job, Runner
from batch_job.scoring.token_budget import BudgetKey, TokenBudget
from shared_model import demo_messages
from shared_model.batches import Batch, Batching, PackedBatch
from shared_model.encoding import Encoding
from shared_model.engine import TAU
from shared_model.engines.torch_engine import TorchEngine
from shared_model.errors import JobError, OutOfMemory
from shared_model.heads import Heads
from shared_model.releases.store import Release
from shared_model.types import Device, Precision
from tests.batch_job.scoring.test_runner import OUTPUT, assert_scored, encodings, raw

pytestmark = pytest.mark.default_release

KEY = BudgetKey("r-1", "fp16/cuda", "a card, 80 bytes, driver 1")


class Gpu:
    """Answers by the first token of each row; what it fails with comes with the result. `room`: tokens that fit;
    `late`: whether it tells with the result, too, what does not."""

    ahead, batching, device, precision, hardware = 1, Batching.PACKED, Device.CUDA, Precision.FP16, KEY.hardware

    def __init__(self, poison: set[int], room: int, late: bool = False) -> None:
        self._poison, self._room, self._late = poison, room, late
        self.sizes, self.scored, self.under_way = list[int](), Counter[int](), 0

    def start(self, batch: Batch) -> "Computing":
        if not self._late:
            self._check(batch)
        self.under_way += 1
        assert self.under_way <= 2, "one batch computes and one waits"
        return Computing(self, batch)

    def answer(self, batch: Batch) -> NDArray[np.float32]:
        self.under_way -= 1
        self._check(batch)
        if not isinstance(batch, PackedBatch):
            assert batch is HARMLESS
            return np.zeros((batch.rows, 3), np.float32)
        self.sizes.append(batch.size)
        first = batch.ids[np.cumsum(batch.lengths) - batch.lengths]
        if np.isin(first, list(self._poison)).any():
            raise RuntimeError("cannot be read")
        self.scored.update(first.tolist())
        return raw(first)

    def _check(self, batch: Batch) -> None:
        if batch.size > self._room:
            raise OutOfMemory(str(batch))


class Computing:
    seconds = 0.25

    def __init__(self, gpu: Gpu, batch: Batch) -> None:
        self._gpu, self._batch = gpu, batch

    def result(self) -> NDArray[np.float32]:
        return self._gpu.answer(self._batch)


def packed(tokens: int) -> Packed:
    return Packed(TokenBudget(None, KEY, lambda: tokens))


def runner(gpu: Gpu, cutting: Packed, most_poison: int = 1000) -> Runner:
    return Runner(("r-1", "cuda:0"), gpu, Heads.of(OUTPUT), most_poison, cutting)  # type: ignore[arg-type]


def parted(job: Job, texts: Sequence[Encoding], size: int) -> list[tuple[Job, Sequence[Encoding]]]:
    return [(job, texts[start : start + size]) for start in range(0, max(1, len(texts)), size)]


jobs = st.lists(st.lists(st.integers(1, 60), max_size=40), min_size=1, max_size=4)


@given(jobs, st.integers(1, 50), st.integers(60, 400), st.integers(60, 400), st.sets(st.integers(2, 41), max_size=5))
def test_every_text_of_every_window_is_scored_once_in_whatever_parts_it_comes(
    windows: list[list[int]], part: int, budget: int, room: int, poison: set[int]
) -> None:
    gpu = Gpu(poison, max(room, HARMLESS.size))
    made = [Job(len(lengths), Heads.of(OUTPUT)) for lengths in windows]
    texts = [encodings(lengths) for lengths in windows]
    parts = [it for job, mine in zip(made, texts, strict=True) for it in parted(job, mine, part)]
    ended = list(runner(gpu, packed(budget)).run(iter(parts)))
    assert ended == made
    assert gpu.under_way == 0
    expected = Counter[int]()
    for job, lengths in zip(made, windows, strict=True):
        bad = [row for row in range(len(lengths)) if row + 2 in poison]
        assert sorted(job.outcomes.poisoned) == bad
        good = [row for row in range(len(lengths)) if row not in bad]
        assert_scored(job.outcomes, good)
        expected.update(row + 2 for row in good)
        assert job.outcomes.padded_tokens == sum(lengths[row] for row in good)
    assert gpu.scored == expected


@given(st.lists(st.integers(1, 60), min_size=20, max_size=200), st.integers(1, 30))
def test_batches_are_full_but_the_last_of_a_window(lengths: list[int], part: int) -> None:
    gpu = Gpu(set(), 10_000)
    job = Job(len(lengths), Heads.of(OUTPUT))
    list(runner(gpu, packed(120)).run(parted(job, encodings(lengths), part)))
    assert all(120 - 60 < size <= 120 for size in gpu.sizes[:-1])


@pytest.mark.parametrize("late", [False, True])
def test_what_does_not_fit_is_halved_for_good(late: bool) -> None:
    gpu, cutting = Gpu(set(), 300, late), packed(1000)
    for _ in range(2):
        job = Job(100, Heads.of(OUTPUT))
        list(runner(gpu, cutting).run([(job, encodings([20] * 100))]))
        assert_scored(job.outcomes, range(100))
    assert max(gpu.sizes) <= 250
    assert gpu.sizes[-9:] == [*[240] * 8, 80]
    assert cutting.fitting([20] * 100) == 12
    with pytest.raises(JobError, match="a text of 400 tokens does not fit the memory"):
        list(runner(gpu, cutting).run([(Job(1, Heads.of(OUTPUT)), encodings([400]))]))


def test_a_budget_is_found_once_and_kept_by_its_key(tmp_path: Path) -> None:
    measured = list[str]()

    def budget(key: BudgetKey = KEY) -> TokenBudget:
        return TokenBudget(tmp_path / "devices", key, lambda: measured.append(key.hardware) or 65_536)

    assert [budget().tokens, budget().tokens] == [65_536] * 2
    assert measured == [KEY.hardware]
    budget().halve(65_000)
    assert budget().tokens == 32_500
    # A batch that was started before the last one failed says nothing new.
    budget().halve(65_000)
    assert budget().tokens == 32_500
    newer = BudgetKey(KEY.release, KEY.variant, "a card, 80 bytes, driver 2")
    assert budget(newer).tokens == 65_536
    assert len(measured) == 2
    kept = [json.loads(path.read_text()) for path in (tmp_path / "devices").iterdir()]
    assert {(it["release"], it["hardware"], it["tokens"]) for it in kept} == {
        ("r-1", KEY.hardware, 32_500),
        ("r-1", newer.hardware, 65_536),
    }


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b'{"tokens": "many"}', b"\xff"])
def test_a_damaged_file_is_measured_again(tmp_path: Path, damage: bytes) -> None:
    TokenBudget(tmp_path, KEY, lambda: 1000)
    [path] = tmp_path.iterdir()
    path.write_bytes(damage)
    assert TokenBudget(tmp_path, KEY, lambda: 2000).tokens == 2000
    assert json.loads(path.read_text())["tokens"] == 2000


def test_a_budget_that_cannot_be_kept_is_used_and_the_log_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert TokenBudget(tmp_path / "file", KEY, lambda: 1000).tokens == 1000
    assert "cannot be written, so the next worker measures again" in "".join(capsys.readouterr())


def test_the_nights_own_code_packs_the_default_model(
    release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CPU, as on a GPU but for the attention kernel."""
    texts = [*islice(demo_messages.texts(seed=9), 40), "card " * 300, ""]
    variant = release.manifest.variant(Precision.FP16, Device.CUDA)
    files = {name: release.read(path) for name, path in variant.files.items()}
    monkeypatch.setattr(batching, "_BUDGETS", {})
    monkeypatch.setattr(TorchEngine, "bulk_tokens", lambda _: 400)
    options = ScoringOptions(release.files.root, release.id, Device.CUDA, state=str(tmp_path))
    with closing(TorchEngine(files, Precision.FP16, Device.CPU)) as engine:
        model = Model(release.id, release.heads, release.encoder(), engine)

        def score(texts: list[str]) -> windows.ScoredWindow:
            source = iter([pa.record_batch({"text": texts})])
            [window] = windows.score_windows(source, lambda it: it.column("text").to_pylist(), model, options)
            return window

        together, alone = score(texts), [score([text]) for text in texts]
    assert together.padded_tokens == together.tokens > 400
    assert len(set(together.batch_rows.tolist())) > 1
    assert together.device_busy > 0
    best = np.array([it.scores[0, 0] for it in alone])
    assert np.abs(together.scores[:, 0] - best).max() <= TAU[Precision.FP16]
    assert [path.parent.name for path in tmp_path.glob("*/*.json")] == ["devices"]

"""Models that several ranks compute together: as in one piece, and gone as one where a rank is lost."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from shared_model.batches import Batch, PackedBatch
from shared_model.encoding import TokenBatch
from shared_model.engines import rank_messages
from shared_model.engines.tensor_parallel import TensorParallelEngine, problem
from shared_model.errors import ReleaseError
from tests.properties import examples
from tests.shared_model.engines import lost_ranks
from tests.shared_model.engines.forked_ranks import RANKS, ForkedRanks
from tests.shared_model.engines.split_models import PACKED, TEXTS, SplitModel, split_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SplitModel]:
    return {family: split_model(tmp_path_factory.mktemp(family), family) for family in PACKED}


@pytest.fixture(scope="module")
def forked(models: dict[str, SplitModel], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedRanks]:
    files = {family: model.files for family, model in models.items()}
    found = ForkedRanks(tmp_path_factory.mktemp("ranks"), files)
    yield found
    found.close()


@pytest.mark.heavy
@pytest.mark.parametrize("family", PACKED)
@pytest.mark.parametrize("ranks", RANKS)
@settings(max_examples=examples(3), deadline=None)
@given(rows=st.lists(st.integers(0, len(TEXTS) - 1), min_size=1, max_size=24))
def test_ranks_compute_what_one_process_does(
    models: dict[str, SplitModel], forked: ForkedRanks, family: str, ranks: int, rows: list[int]
) -> None:
    batch = models[family].batch(rows)
    assert models[family].delta(forked.score(family, ranks, batch), batch) <= 1e-5


_IDS = arrays.arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=st.integers(0, 2**62))


@given(ids=_IDS, typed=st.booleans(), packed=st.booleans())
def test_batches_reach_ranks_as_they_are(ids: np.ndarray, typed: bool, packed: bool) -> None:
    sent: Batch = TokenBatch(ids, ids % 2, ids % 3 if typed else None)
    if packed:
        sent = PackedBatch(ids.T.ravel(), ids[0], ids.ravel()[::-1] if typed else None)
    found = rank_messages.batch_from_bytes(rank_messages.batch_to_bytes(sent))
    assert type(found) is type(sent)
    for name in ("ids", "types", *(["lengths"] if packed else ["mask"])):
        np.testing.assert_array_equal(getattr(found, name), getattr(sent, name))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("number", "why"),
    [
        (signal.SIGKILL, "was ended by SIGKILL"),
        pytest.param(signal.SIGSTOP, "does not answer", marks=pytest.mark.proof),
    ],
)
def test_a_killed_or_hanging_rank_ends_the_engine_within_10_s_which_starts_again(
    models: dict[str, SplitModel], caplog: pytest.LogCaptureFixture, number: signal.Signals, why: str
) -> None:
    model = models["bert"]
    batch = model.batch(range(6))
    with closing(TensorParallelEngine(model.files, lost_ranks.SPLIT)) as engine:
        first = engine.processes
        assert model.delta(engine.start(batch).result(), batch) <= 1e-5
        seconds, said = lost_ranks.loss_seconds(engine, batch, number)
        assert (seconds <= 10, said) == (True, f"rank 1 of 2 {why}")
        # Only that batch was lost.
        again = engine.start(batch)
        assert model.delta(again.result(), batch) <= 1e-5
        assert again.seconds > 0
        assert all(map(lost_ranks.gone, first))
    assert caplog.messages == [f"rank 1 of 2 {why}; all ranks start again"]


@pytest.mark.proof
def test_no_rank_outlives_a_killed_engine(models: dict[str, SplitModel], tmp_path: Path) -> None:
    """With whole ranks. The next test has what ends them."""
    for name, content in models["bert"].files.items():
        (tmp_path / name).write_bytes(content)
    command = [sys.executable, "-m", lost_ranks.__name__, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        ranks = [int(it) for it in parent.stdout.readline().split()]
        assert len(ranks) == 2
        # One that cannot notice anything.
        os.kill(ranks[1], signal.SIGSTOP)
        parent.kill()
    _wait_until_gone(ranks)


@pytest.mark.heavy
def test_a_rank_that_reads_nothing_ends_with_its_engine() -> None:
    waiting = (
        "import signal, sys; from shared_model.engines.rank import end_with; end_with(int(sys.argv[1]));"
        "print('set', flush=True); signal.pause()"
    )
    starting = (
        "import os, subprocess, sys;"
        "rank = subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())], stdout=subprocess.PIPE);"
        "rank.stdout.readline(); print(rank.pid, flush=True); rank.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", starting, waiting], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        rank = int(parent.stdout.readline())
        parent.kill()
    _wait_until_gone([rank])


def _wait_until_gone(ranks: list[int]) -> None:
    until = time.monotonic() + 10
    while not all(map(lost_ranks.gone, ranks)):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_model_that_ranks_cannot_share_evenly_is_refused_in_one_line() -> None:
    config = {"model_type": "bert", "num_attention_heads": 12, "intermediate_size": 3072}
    assert problem(config, 5) == (
        "5 ranks cannot share the model's 12 attention heads and MLP of 3072 evenly; set one of 1, 2, 3, 4, 6, 12"
    )
    assert problem({"model_type": "distilbert", "n_heads": 4, "hidden_dim": 48}, 3).startswith("3 ranks cannot share")
    assert not problem(config, 6)
    files = {"config.json": b'{"model": {"model_type": "mpnet"}}'}
    with pytest.raises(ReleaseError, match=r"splits bert, .*; this model is a mpnet"):
        TensorParallelEngine(files, lost_ranks.SPLIT)

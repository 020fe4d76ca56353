"""Texts that fail by themselves are left out, with any error; batches that do not fit run in smaller ones."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from batch_job.scoring import runner as runner_module
from batch_job.scoring.batching import Buckets
from batch_job.scoring.ceilings import Ceilings
from batch_job.scoring.runner import HARMLESS, Job, Outcomes, Runner
from shared_model.batches import Finished
from shared_model.encoding import Encoding, TokenBatch
from shared_model.errors import JobError, OutOfMemory
from shared_model.heads import Heads
from shared_model.output import OutputKind, OutputSpec

OUTPUT = OutputSpec(OutputKind.SINGLE_LABEL, ("a", "b", "c"), 3)


class Engine:
    """Scores a text by its number, which its first token is; fails on what is in `poison`, and on batches of more than
    `room` tokens. `broken`: on every batch from then on."""

    ahead = 0

    def __init__(self, poison: set[int], numbers: bool = False, room: int = 1 << 30) -> None:
        self._poison = poison
        self._numbers = numbers
        self._room = room
        self.broken = False
        self.batches: list[tuple[int, int]] = []
        self.scored = Counter[int]()

    def start(self, batch: TokenBatch) -> Finished:
        self.batches.append((batch.rows, batch.tokens))
        if batch.rows * batch.tokens > self._room:
            raise OutOfMemory(f"{batch.rows} rows of {batch.tokens} tokens")
        first = batch.ids[:, 0]
        bad = np.isin(first, list(self._poison)) | self.broken
        if bad.any() and not self._numbers:
            raise RuntimeError(f"{first[bad][0]} cannot be read\n  by line 3 of a kernel")
        if batch is not HARMLESS and not bad.any():
            self.scored.update(first.tolist())
        return Finished(np.asarray(np.where(bad[:, None], np.nan, raw(first)), np.float32), 0.5)


def raw(numbers: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.asarray(np.sin(numbers[:, None] * np.array([1.0, 2.0, 3.0])), np.float32)


def encodings(lengths: Sequence[int]) -> list[Encoding]:
    """Texts of these lengths, numbered from 2; 1 is what harmless batches are of."""
    return [Encoding(np.full(tokens, number, np.int32), False) for number, tokens in enumerate(lengths, start=2)]


def run(engine: Any, lengths: Sequence[int], most_poison: int = 1000, ceilings: Ceilings | None = None) -> Outcomes:
    return ran(runner(engine, most_poison, ceilings=ceilings), lengths).outcomes


def runner(engine: Any, most_poison: int, rows: int = 64, ceilings: Ceilings | None = None) -> Runner:
    where = ("r-1", "cuda:0")
    buckets = Buckets(where, rows, 2048, few_shapes=True, ceilings=ceilings or Ceilings())
    return Runner(where, engine, Heads.of(OUTPUT), most_poison, buckets)


def ran(runner: Runner, lengths: Sequence[int], progress: Callable[[float], None] = lambda share: None) -> Job:
    [job] = runner.run([(Job(len(lengths), Heads.of(OUTPUT), progress), encodings(lengths))])
    return job


def assert_scored(outcomes: Outcomes, rows: Sequence[int]) -> None:
    expected = OUTPUT.scores(raw(np.array(rows, np.int64) + 2))
    np.testing.assert_array_equal(outcomes.scores[list(rows)], -np.sort(-expected, axis=1))


def test_answers_of_any_number_of_rows_are_found_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "_ROWS_TOGETHER", 4)
    assert_scored(run(Engine(set()), [5] * 9), range(9))


def test_tokens_that_are_done_are_told_after_each_batch_poison_too() -> None:
    told = list[float]()
    ran(runner(Engine({3}), 1, rows=2), [9, 5, 5, 5, 5], told.append)
    assert told == [9 / 29, 19 / 29, 1.0]


windows = st.lists(st.integers(1, 40), min_size=1, max_size=150).flatmap(
    lambda lengths: st.tuples(st.just(lengths), st.sets(st.integers(0, len(lengths) - 1), max_size=30))
)


@given(windows, st.booleans())
def test_any_poison_is_found_and_every_other_text_is_scored_once(
    drawn: tuple[list[int], set[int]], numbers: bool
) -> None:
    lengths, poison = drawn
    engine = Engine({row + 2 for row in poison}, numbers)
    found = run(engine, lengths)
    assert sorted(found.poisoned) == sorted(poison)
    others = [row for row in range(len(lengths)) if row not in poison]
    assert engine.scored == Counter(row + 2 for row in others)
    assert_scored(found, others)
    # Texts are padded by less than a fifth at these lengths.
    assert found.padded_tokens <= 1.2 * sum(lengths[row] for row in others)


@given(st.integers(0, 5), st.booleans())
def test_an_engine_that_fails_for_everything_is_no_poison(most_poison: int, numbers: bool) -> None:
    engine = Engine(set(range(200)), numbers)
    with pytest.raises(JobError, match=r"release r-1 on cuda:0: .*; nothing was committed"):
        run(engine, [12] * 150, most_poison)
    assert len(engine.batches) <= 2 * (most_poison + 1) * 7 + 1


def test_too_many_are_counted_over_all_windows_of_a_task() -> None:
    task = runner(Engine({3, 6}), 3)
    assert sorted(ran(task, [5] * 9).outcomes.poisoned) == [1, 4]
    with pytest.raises(
        JobError, match=r"4 texts cannot be scored, each by itself \(RuntimeError: 6 cannot be read\), and 3 may"
    ):
        ran(task, [5] * 9)


def test_an_engine_that_breaks_on_the_way_is_not_blamed_on_a_text() -> None:
    engine = Engine({3})

    class Breaks:
        ahead = 0

        def start(self, batch: TokenBatch) -> Finished:
            engine.broken = batch.rows == 1 and batch.ids[0, 0] == 3
            return engine.start(batch)

    assert run(Breaks(), [5] * 9).poisoned == [1]

    class StaysBroken(Breaks):
        def start(self, batch: TokenBatch) -> Finished:
            engine.broken |= batch.rows == 1 and batch.ids[0, 0] == 3
            return engine.start(batch)

    with pytest.raises(JobError, match=r"nothing can be scored any more \(RuntimeError: 1 cannot be read\)"):
        run(StaysBroken(), [5] * 2)


def test_what_does_not_fit_is_halved_and_the_ceiling_is_remembered() -> None:
    engine, ceilings = Engine(set(), room=300), Ceilings()
    found = run(engine, [24] * 64, ceilings=ceilings)
    assert_scored(found, range(64))
    assert set(engine.scored.values()) == {1}
    assert engine.batches == [(64, 24), (32, 24), (16, 24), *[(8, 24)] * 8]
    assert found.batch_rows.tolist() == [8] * 64
    assert found.padded_tokens == 64 * 24
    assert found.seconds == 8 * 0.5
    engine.batches.clear()
    run(engine, [24] * 30, ceilings=ceilings)
    assert engine.batches == [*[(8, 24)] * 2, (8, 24), (4, 24), (2, 24)]
    engine.batches.clear()
    run(engine, [16] * 16, ceilings=ceilings)
    assert engine.batches == [(16, 16)]


@given(windows, st.integers(60, 3000))
def test_memory_and_poison_at_once(drawn: tuple[list[int], set[int]], room: int) -> None:
    lengths, poison = drawn
    found = run(Engine({row + 2 for row in poison}, room=max(room, HARMLESS.mask.size)), lengths)
    assert sorted(found.poisoned) == sorted(poison)
    assert_scored(found, [row for row in range(len(lengths)) if row not in poison])


def test_one_text_that_does_not_fit_is_named_by_its_length() -> None:
    with pytest.raises(
        JobError, match="release r-1 on cuda:0: a text of 40 tokens does not fit the memory: 1 rows of 40"
    ):
        run(Engine(set(), room=39), [5, 40, 7])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_whoever_is_told_to_stop_stops(error: Callable[[], BaseException]) -> None:
    class Told:
        ahead = 0

        def start(self, batch: TokenBatch) -> Finished:
            raise error()

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run(Told(), [5] * 9)

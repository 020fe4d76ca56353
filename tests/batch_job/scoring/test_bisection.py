"""Failing items are found among any others, and everything else is answered once."""

from collections import Counter
from collections.abc import Sequence
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_job.scoring.bisection import Failure, isolate_failures


class Engine:
    """Doubles numbers, and fails on whatever holds one of `poison`."""

    def __init__(self, poison: set[int]) -> None:
        self._poison = poison
        self.runs = 0
        self.answered = Counter[int]()

    def run(self, numbers: Sequence[int]) -> list[int]:
        self.runs += 1
        if bad := self._poison & set(numbers):
            raise ValueError(f"{sorted(bad)[0]} cannot be doubled")
        self.answered.update(numbers)
        return [2 * number for number in numbers]


@given(st.integers(0, 200).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, max(0, n - 1))))))
def test_any_poison_is_found_and_the_others_are_answered_once(drawn: tuple[int, set[int]]) -> None:
    count, poison = drawn
    engine = Engine(poison)
    answers = isolate_failures(engine.run, range(count), ValueError, most=count)
    for number, answer in enumerate(answers):
        if number in poison:
            assert isinstance(answer, Failure)
            assert str(answer.error) == f"{number} cannot be doubled"
        else:
            assert (answer, engine.answered[number]) == (2 * number, 1)
    assert engine.runs <= 1 + 2 * len(poison) * (log2(max(1, count)) + 1)


@given(st.integers(1, 200), st.integers(0, 10))
def test_where_nothing_can_be_run_it_gives_up(count: int, most: int) -> None:
    engine = Engine(set(range(count)))
    answers = isolate_failures(engine.run, range(count), ValueError, most)
    assert sum(isinstance(answer, Failure) for answer in answers) == min(count, most + 1)
    assert answers.count(None) == max(0, count - most - 1)
    assert engine.runs <= 2 * (most + 1) * (log2(count) + 1)


def test_what_is_no_failure_of_an_item_ends_the_search() -> None:
    def run(numbers: Sequence[int]) -> list[int]:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        isolate_failures(run, [1, 2, 3], ValueError, most=3)


def test_answers_must_be_as_many_as_the_items() -> None:
    with pytest.raises(ValueError, match="shorter"):
        isolate_failures(lambda numbers: [0], [1, 2, 3], KeyError, most=3)

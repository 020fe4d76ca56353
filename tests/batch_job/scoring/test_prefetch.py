"""Items made ahead arrive complete, in order, with their errors; a consumer that leaves stops the maker."""

import threading
import time
from collections.abc import Iterator

import pytest

from batch_job.scoring.prefetch import ahead


def test_items_arrive_in_order() -> None:
    assert list(ahead(range(100), depth=2)) == list(range(100))
    assert list(ahead([], depth=2)) == []


def test_an_error_arrives_after_the_items_before_it() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("the second")

    items = ahead(failing(), depth=2)
    assert next(items) == 1
    with pytest.raises(ValueError, match="the second"):
        next(items)


def test_items_are_made_while_the_consumer_works_and_not_further_ahead_than_told() -> None:
    made: list[int] = []
    enough = threading.Event()

    def counted() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            if len(made) == 4:
                enough.set()
            yield number

    items = ahead(counted(), depth=2)
    assert next(items) == 0
    # One taken, two waiting, one in the maker's hand.
    assert enough.wait(5)
    assert len(made) == 4
    items.close()


def test_a_consumer_that_leaves_stops_the_maker() -> None:
    items = ahead(iter(int, 1), depth=1)
    next(items)
    items.close()
    deadline = time.monotonic() + 5
    while any(thread.name == "prefetch" for thread in threading.enumerate()) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert not any(thread.name == "prefetch" for thread in threading.enumerate())

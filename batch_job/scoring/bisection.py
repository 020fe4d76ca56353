"""Find what cannot be computed among what can: in halves, down to what fails by itself. No I/O, nothing of Spark."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Failure:
    """The error of an item that was run by itself."""

    error: Exception


def isolate_failures(
    run: Callable[[Sequence[Item]], Sequence[Answer]],
    items: Sequence[Item],
    failures: type[Exception] | tuple[type[Exception], ...],
    most: int,
) -> list[Answer | Failure | None]:
    """What `run` answers, in the order of the items; a Failure for each that fails by itself.

    `run` answers all the items it is given or raises one of `failures`; anything else it raises ends the search. Once
    more than `most` have failed by themselves the fault is hardly theirs: what has no answer by then is None, and not
    run. So `run` is called at most 2 (most + 1) (log2 n + 1) times.
    """
    answers: list[Answer | Failure | None] = [None] * len(items)
    spans, failed = [range(len(items))] if items else [], 0
    while spans and failed <= most:
        span = spans.pop()
        try:
            found: Sequence[Answer | Failure] = run([items[place] for place in span])
        except failures as error:
            if len(span) > 1:
                middle = len(span) // 2
                spans += [span[middle:], span[:middle]]
                continue
            found, failed = [Failure(error)], failed + 1
        for place, answer in zip(span, found, strict=True):
            answers[place] = answer
    return answers

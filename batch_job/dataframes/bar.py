"""A progress bar where a person watches: in a notebook or on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(rows: int, shown: bool | None) -> Iterator[Callable[[int], object]]:
    """Gives a function that is to be called with the number of rows done so far. `shown`: None where it helps."""
    watched = "ipykernel" in sys.modules or sys.stderr.isatty()
    if not (watched if shown is None else shown):
        yield lambda done: None
        return
    # Imported here: in notebooks it loads widgets.
    from tqdm.auto import tqdm

    with tqdm(total=rows, unit=" rows") as bar:
        yield lambda done: bar.update(done - bar.n)

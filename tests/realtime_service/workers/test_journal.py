"""The journal holds exactly what is on the device, whatever came before; its texts survive packing."""

import contextlib
import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime_service.workers import journal
from realtime_service.workers.journal import Journal, Suspect
from shared_model.encoding import Encoding

numbers = st.integers(0, 2**31 - 1)


#: Releases, and whether they read types: all texts of one do, or none.
RELEASES = {"one-0123": False, "été-☂": True, "x" * 200: True}


@st.composite
def unit(draw: st.DrawFn) -> tuple[str, list[Encoding]]:
    release = draw(st.sampled_from(sorted(RELEASES)))
    texts = draw(st.lists(st.lists(numbers, min_size=1, max_size=40), min_size=1, max_size=8))
    arrays = [np.array(ids, np.int32) for ids in texts]
    return release, [Encoding(it, truncated=False, types=it % 2 if RELEASES[release] else None) for it in arrays]


#: A unit that begins, or which of those that run ends.
steps = st.lists(st.one_of(unit(), st.integers(0, 10)), max_size=30)


@contextlib.contextmanager
def descriptor() -> Iterator[int]:
    made = journal.create()
    try:
        yield made
    finally:
        os.close(made)


def suspects(release: str, texts: list[Encoding]) -> set[Suspect]:
    return {
        Suspect(release, it.ids.tobytes(), b"" if it.types is None else it.types.astype(np.int32).tobytes())
        for it in texts
    }


@given(steps)
def test_a_crash_at_any_moment_leaves_exactly_what_was_running(sequence: list[object]) -> None:
    with descriptor() as memory, contextlib.ExitStack() as never_ended:
        written, running = Journal(memory), list[tuple[contextlib.ExitStack, set[Suspect]]]()
        for step in sequence:
            if isinstance(step, tuple):
                begun = never_ended.enter_context(contextlib.ExitStack())
                begun.enter_context(written.running(*step))
                running.append((begun, suspects(*step)))
            elif running:
                ended, _ = running.pop(step % len(running))
                ended.close()
            assert set(journal.read(memory)) == set().union(*(texts for _, texts in running))


def test_an_engine_that_raises_is_no_crash() -> None:
    with descriptor() as memory:
        with pytest.raises(ZeroDivisionError), Journal(memory).running("one", [text(1)]):
            raise ZeroDivisionError
        assert journal.read(memory) == []


def test_texts_that_do_not_fit_are_left_out_and_the_others_are_kept() -> None:
    long = text(*range(journal.SLOT_BYTES // 8))
    with descriptor() as memory, Journal(memory).running("one", [text(1), long, long, text(2)]):
        assert set(journal.read(memory)) == suspects("one", [text(1), long])


def text(*ids: int) -> Encoding:
    return Encoding(np.array(ids, np.int32), truncated=False)

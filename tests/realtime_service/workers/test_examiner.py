"""Who killed the worker: each suspect alone, and nobody for what another did."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime_service.workers.examiner import Examiner, find_guilty
from realtime_service.workers.journal import Suspect
from shared_model.releases.store import Store
from shared_model.types import Device, Precision
from tests.realtime_service.rollout import tiny_releases


def suspects(count: int) -> list[Suspect]:
    return [Suspect("tiny", bytes([number, 0, 0, 0]), b"") for number in range(count)]


@given(st.integers(0, 12), st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)))
async def test_exactly_those_that_kill_a_process_alone(count: int, deadly: set[int], weak: set[int]) -> None:
    """`weak` ones die of what ran before them in the same process, and are innocent."""
    asked = suspects(count)

    async def run(some: Sequence[Suspect]) -> int | None:
        for index, suspect in enumerate(some):
            number = asked.index(suspect)
            if number in deadly or (number in weak and index > 0):
                return index
        return None

    assert await find_guilty(asked, run) == [asked[number] for number in sorted(deadly) if number < count]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("releases"))


async def test_a_text_that_crashes_its_engine_is_found_among_others(store: Store) -> None:
    release = tiny_releases.seal_poisonable(store, "poisonable")
    texts = ["where is my card", "card", tiny_releases.POISON, "my card please"]
    encoded = [release.encoder().encode(text) for text in texts]
    asked = [Suspect(release.id, encoding.ids.tobytes(), b"") for encoding in encoded]
    assert await find_guilty(asked, examiner(store, 60).run) == [asked[2]]


async def test_one_that_takes_too_long_tells_nothing(store: Store) -> None:
    hang = tiny_releases.seal_graph(
        store, "hang", tiny_releases.embedding(tiny_releases.table(), tiny_releases.endless)
    )
    ids = hang.encoder().encode("card").ids.tobytes()
    assert await find_guilty([Suspect(hang.id, ids, b"")], examiner(store, 4).run) == []


async def test_a_release_that_is_gone_is_no_texts_fault(store: Store) -> None:
    assert await find_guilty(suspects(2), examiner(store, 60).run) == []


def examiner(store: Store, seconds: float) -> Examiner:
    return Examiner(str(Path(store.files.root)), {Precision.INT8: Device.CPU}, 1, seconds)

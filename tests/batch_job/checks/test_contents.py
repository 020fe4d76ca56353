"""Figures that are read back from written files for the gate."""

import hashlib
from collections.abc import Iterable
from functools import partial, reduce
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_job.checks import contents
from batch_job.checks.contents import Contents
from batch_job.shards import schemas
from batch_job.shards.shard_files import Target, write_file
from shared_model.errors import JobError
from tests.batch_job.shards import written


def read(folder: Path, *batches: pa.RecordBatch, sample: int = 10) -> Contents:
    """Each batch as a file of its own."""
    return contents.read(places(folder, batches), sample)


def places(folder: Path, batches: Iterable[pa.RecordBatch]) -> list[tuple[str, str]]:
    return [(str(folder / file.path), file.sha256) for file in (written.file(folder, it) for it in batches)]


def test_rows_labels_and_lengths_are_counted_over_all_files(tmp_path: Path) -> None:
    first = written.batch(["a", "b", "c"], ["yes", "no", "yes"], tokens=[1, 4, 5])
    held = read(tmp_path, first, written.batch(["d"], ["yes"], tokens=[17]), written.batch([], []))
    assert (held.rows, held.not_finite) == (4, 0)
    assert held.labels == {"yes": 3, "no": 1}
    # 1 to 4, 5 to 8, …, 17 to 20 tokens.
    assert held.lengths == (2, 1, 0, 0, 1)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_no_number_is_counted_wherever_it_stands(tmp_path: Path, wrong: float) -> None:
    scores = [(0.6, 0.3), (0.6, wrong), (wrong, 0.3)]
    assert read(tmp_path, written.batch(["a", "b", "c"], ["yes"] * 3, scores)).not_finite == 2


def test_rows_without_labels_have_their_vectors_looked_at(tmp_path: Path) -> None:
    plain = written.batch(["a", "b"], ["yes", "yes"]).to_pydict()
    vectors = {**plain, "label": [None] * 2, "top_k": [[], []], "vector": [[0.5, float("nan")], [0.1, 0.2]]}
    held = read(tmp_path, pa.RecordBatch.from_pydict(vectors, schema=schemas.SCORES))
    assert (held.rows, held.not_finite, held.labels) == (2, 1, {})


@given(
    files=st.lists(st.lists(st.sampled_from([f"text {number}" for number in range(30)]), max_size=40), max_size=4),
    most=st.integers(1, 12),
)
def test_the_sample_is_the_texts_with_the_lowest_hashes_once_each(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[str]], most: int
) -> None:
    batches = [written.batch(texts, ["yes"] * len(texts)) for texts in files]
    held = read(tmp_path_factory.mktemp("files"), *batches, sample=most)
    parts = [read(tmp_path_factory.mktemp("part"), it, sample=most) for it in (written.batch([], []), *batches)]
    assert reduce(partial(contents.merge, sample=most), parts) == held
    hashes = sorted({hashlib.sha256(text.encode()).hexdigest() for texts in files for text in texts})
    assert held.sample.column("text_hash").to_pylist() == hashes[:most]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(1_000)]
    target = Target(str(tmp_path), "2026-01-14", "plan", 1)
    path, _, _, digest = write_file(target, schemas.SCORES, [written.batch(texts, ["yes"] * len(texts))])
    damaged = bytearray((tmp_path / path).read_bytes())
    # In the column of hashes, the second of the file.
    place = damaged.index(b"\x28\xb5\x2f\xfd", len(damaged) // 4) + 60
    damaged[place] ^= 1
    (tmp_path / path).write_bytes(damaged)
    whole = hashlib.sha256(damaged).hexdigest()
    for known, why in ((whole, ""), (digest, ": it is not as it was written")):
        with pytest.raises(JobError, match=rf"\.parquet cannot be read back{why}"):
            contents.read([(str(tmp_path / path), known)], 10)

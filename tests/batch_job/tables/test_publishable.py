"""A partition's texts by how often they came, of which only those that can be published are kept."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport, Target, write_file
from batch_job.tables import publishable, table
from tests.batch_job.tables.test_table import DAY, nothing, score_file


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_texts_are_ranked_by_their_rows_and_then_by_the_first(texts: list[int]) -> None:
    # Texts differ in one of both numbers.
    keys = np.array([(text % 2, text // 2) for text in texts], np.uint64)
    counts, firsts, ranks = publishable.rank(keys)
    times = Counter(texts)
    expected = sorted(times, key=lambda text: (-times[text], texts.index(text)))
    assert [texts[row] for row in firsts] == [texts[texts.index(text)] for text in expected]
    assert firsts.tolist() == [texts.index(text) for text in expected]
    assert counts.tolist() == [times[text] for text in expected]
    assert [expected[rank] for rank in ranks] == texts


@pytest.fixture
def scored(tmp_path: Path) -> DeltaTable:
    """Two files: text 2 of three messages, text 0 of two, text 1 of one."""
    files = []
    for number, texts in enumerate(([0, 2, 1], [2, 0, 2])):
        written = score_file(tmp_path, number, [f"m{number}{place}" for place in range(3)])
        [batch] = table.read_file(str(tmp_path / written.path), schemas.SCORES.names, "")
        place = batch.schema.get_field_index("encoding_key")
        keyed = batch.set_column(place, "encoding_key", pa.array([bytes([text] * 16) for text in texts], pa.binary()))
        target = Target(str(tmp_path), DAY, "plan", number)
        files.append(FileReport(*write_file(target, schemas.SCORES, [keyed], f"s{number}")))
    table.replace_partition(tmp_path, DAY, files, 5, nothing, {})
    return DeltaTable(str(tmp_path))


@pytest.mark.parametrize("most", [1, 2, 3, 1 << 60])
def test_rows_and_ids_are_kept_of_the_texts_that_fit_alone(scored: DeltaTable, most: int) -> None:
    found = publishable.read(scored, DAY, most)
    assert found
    assert (found.release, found.precision, found.texts, found.lines) == ("r-0123456789ab", "bf16", 3, 6)
    keys = [bytes([text] * 16) for text in (2, 0, 1)][:most]
    assert found.rows.column("encoding_key").to_pylist() == keys
    assert found.messages.counts.tolist() == [3, 2, 1][:most]
    sent = {keys[0]: {"m01", "m10", "m12"}, bytes(16): {"m00", "m11"}, bytes([1] * 16): {"m02"}}
    wanted = sorted((message, key) for key in keys for message in sent[key])
    assert sorted(found.messages.entries(len(keys))) == wanted
    assert len(found.messages.ids) == len(wanted)

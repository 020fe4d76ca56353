"""Files that executors write."""

from pathlib import Path

import pyarrow.parquet as pq

from tests.batch_job.tables.test_table import score_file


def test_columns_that_repeat_have_dictionaries_and_no_others(tmp_path: Path) -> None:
    written = score_file(tmp_path, 1, [f"m{number}" for number in range(50)])
    group = pq.read_metadata(tmp_path / written.path).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    found = {column.path_in_schema for column in columns if column.has_dictionary_page}
    assert {"label", "release", "precision", "top_k.list.element.label"} <= found
    assert not found & {"id", "text_hash", "encoding_key", "score", "top_k.list.element.score"}

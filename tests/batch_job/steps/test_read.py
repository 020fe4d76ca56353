"""What `read` prints: one line a row whatever an id holds, nothing that was not committed, and whose fault it is."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport, Target, write_file
from batch_job.steps import read
from batch_job.tables import table
from shared_model.errors import JobError
from tests.batch_job.conftest import DAY
from tests.batch_job.shards import written

IDS = ["plain", "tab\there", "line\nend", "日本 🙂", 'quote"']
Commit = Callable[..., None]


@pytest.fixture
def commit(tmp_path: Path) -> Commit:
    def run(token: int, ids: list[str], ds: str = DAY) -> None:
        columns = {
            "id": ids,
            "text_hash": ["00"] * len(ids),
            "label": ["card_arrival"] * len(ids),
            "score": [0.5] * len(ids),
            "release": ["small-0123456789ab"] * len(ids),
            "precision": ["bf16"] * len(ids),
            "scored_at": [datetime(2026, 1, 15, 2, tzinfo=UTC)] * len(ids),
            "encoding_key": [b"\x00\xff" * 8] * len(ids),
            "tokens": [3] * len(ids),
            "truncated": [False] * len(ids),
            "top_k": [[{"label": "card_arrival", "score": 0.5}]] * len(ids),
            "vector": [None] * len(ids),
            "abstained": [None] * len(ids),
            "heads": [None] * len(ids),
        }
        batch = pa.RecordBatch.from_pydict(columns, schema=schemas.SCORES)
        file = FileReport(*write_file(Target(str(tmp_path), ds, "plan", token), schemas.SCORES, [batch]))
        table.replace_partition(tmp_path, ds, [file], token, lambda: None, {})

    return run


def test_every_row_is_one_line_and_every_value_one_cell(commit: Commit, tmp_path: Path) -> None:
    commit(1, IDS)
    heading, *lines = read.lines(tmp_path, DAY, 0, as_json=False)
    assert heading.split("\t") == ["id", "label", "score", "release", "precision", "scored_at", "source"]
    assert [len(line.split("\t")) for line in lines] == [7] * len(IDS)
    assert lines[0] == "plain\tcard_arrival\t0.5000\tsmall-0123456789ab\tbf16\t2026-01-15T02:00:00+00:00\tarchive"


def test_json_lines_hold_every_column_as_it_was(commit: Commit, tmp_path: Path) -> None:
    commit(1, IDS)
    found = [json.loads(line) for line in read.lines(tmp_path, DAY, 0, as_json=True)]
    assert [row["id"] for row in found] == IDS
    assert set(found[0]) == {"ds", "source", *schemas.SCORES.names}
    assert (found[0]["encoding_key"], found[0]["vector"]) == ("00ff" * 8, None)


def test_a_label_leaves_the_rows_of_others_out(commit: Commit, tmp_path: Path) -> None:
    commit(1, IDS)
    assert len(list(read.lines(tmp_path, DAY, 2, as_json=True, label="card_arrival"))) == 2
    assert list(read.lines(tmp_path, DAY, 2, as_json=True, label="refund")) == []


def test_only_what_is_committed_is_read(commit: Commit, tmp_path: Path) -> None:
    commit(1, ["replaced"])
    commit(2, ["a", "b", "c"])
    commit(1, ["another day"], ds="2026-01-15")
    assert [line.split("\t")[0] for line in read.lines(tmp_path, DAY, 2, as_json=False)] == ["id", "a", "b"]


def test_a_day_that_was_never_committed_is_named(commit: Commit, tmp_path: Path) -> None:
    commit(1, ["a"])
    with pytest.raises(JobError, match="holds no ds=2026-01-15; score it first"):
        list(read.lines(tmp_path, "2026-01-15", 0, as_json=False))


def test_the_input_and_an_attempt_that_was_refused_are_told_beside_the_rows(
    commit: Commit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = read.About("/mine/{ds}", "the latest attempt was refused: labels", ". `make demo` has it")
    commit(1, ["a"])
    assert len(list(read.lines(tmp_path, DAY, 0, False, about))) == 2
    told, refused = capsys.readouterr().err.splitlines()
    assert told.endswith(f"ds={DAY} of /mine/{{ds}}, in {tmp_path}")
    assert refused.endswith("the latest attempt was refused: labels; these are the scores that were committed before")
    # The commit's input takes precedence over the environment's.
    written.commit(tmp_path, "2026-01-15", ["yes"], **{table.INPUT: "/theirs/{ds}"})
    list(read.lines(tmp_path, "2026-01-15", 0, False, read.About("/mine/{ds}")))
    assert f"ds=2026-01-15 of /theirs/{{ds}}, in {tmp_path}" in capsys.readouterr().err
    with pytest.raises(JobError) as caught:
        list(read.lines(tmp_path, "2026-01-16", 0, False, about))
    missing = f"{tmp_path} holds no ds=2026-01-16; score it first (input: /mine/{{ds}})"
    assert str(caught.value) == f"{missing}; the latest attempt was refused: labels. `make demo` has it"


def test_a_damaged_file_is_named(commit: Commit, tmp_path: Path) -> None:
    commit(1, ["a"] * 1000)
    [uri] = DeltaTable(str(tmp_path)).file_uris()
    path = Path(uri.removeprefix("file://"))
    damaged = bytearray(path.read_bytes())
    damaged[60] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(JobError, match=rf"{path.name} cannot be read: .*; score ds=2026-01-14 again"):
        list(read.lines(tmp_path, DAY, 0, as_json=False))


def test_files_whose_names_have_no_hash_are_read_and_told(
    commit: Commit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(1, IDS)
    assert (len(list(read.lines(tmp_path, DAY, 0, as_json=False))), capsys.readouterr().err) == (6, "")
    DeltaTable(str(tmp_path)).optimize.z_order(["label"])
    assert len(list(read.lines(tmp_path, DAY, 0, as_json=False))) == 6
    [line] = capsys.readouterr().err.splitlines()
    assert "unchecked: 1 of 1 files" in line


def test_who_has_read_enough_gets_no_complaint(commit: Commit, tmp_path: Path, environment: dict[str, str]) -> None:
    commit(1, [f"m{number}" for number in range(20_000)])
    command = [sys.executable, "-m", "batch_job", "read", "--ds", DAY, "--limit", "0"]
    done = subprocess.Popen(
        command, env={**environment, "TANDEM_SCORES": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert done.stdout
    assert done.stderr
    assert done.stdout.readline().startswith(b"id\t")
    done.stdout.close()
    [told] = done.stderr.read().splitlines()
    assert told.endswith(
        f"ds={DAY} of the default archive, {environment['TANDEM_STATE']}/messages, in {tmp_path}".encode()
    )
    assert done.wait(60) == 0
    done.stderr.close()

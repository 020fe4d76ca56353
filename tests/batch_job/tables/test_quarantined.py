"""Examples of quarantined lines: of every reason one, readable whatever bytes they are."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from batch_job.run_record import QuarantinedLine
from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport, Target, write_file
from batch_job.tables import quarantined
from shared_model.errors import JobError


def batch(lines: Sequence[tuple[str, bytes]]) -> pa.RecordBatch:
    columns = {
        "attempt": [1] * len(lines),
        "file": ["a.jsonl"] * len(lines),
        "reason": [reason for reason, _ in lines],
        "raw": [raw for _, raw in lines],
        "raw_bytes": [len(raw) for _, raw in lines],
    }
    return pa.RecordBatch.from_pydict(columns, schema=schemas.QUARANTINE)


def shown(raw: bytes) -> str:
    [line] = quarantined.examples([batch([("empty", raw)])])
    return line.raw


def test_every_reason_has_an_example_before_one_has_two() -> None:
    many = [("bad_json", f"line {number}".encode()) for number in range(100)]
    found = quarantined.examples([batch(many), batch([("empty", b""), ("bad_json", b"x"), ("bad_encoding", b"\xff")])])
    assert found == (
        QuarantinedLine("bad_json", "a.jsonl", "line 0"),
        QuarantinedLine("bad_encoding", "a.jsonl", "\\xff"),
        QuarantinedLine("empty", "a.jsonl", ""),
        QuarantinedLine("bad_json", "a.jsonl", "line 1"),
        QuarantinedLine("bad_json", "a.jsonl", "line 2"),
    )


def test_of_few_lines_all_are_examples_and_of_none_none() -> None:
    assert len(quarantined.examples([batch([("empty", b"")] * 3)])) == 3
    assert quarantined.examples([]) == ()
    assert len(quarantined.examples([batch([("empty", b"")] * 30)], most=20)) == 20


def test_a_damaged_byte_can_be_seen_and_a_long_line_is_cut_between_characters() -> None:
    assert shown(b"Verf\xfcgung") == "Verf\\xfcgung"
    assert shown("é".encode() * 200) == "é" * 200
    for text in ("é" * 201, "x" + "🙂" * 4_000, "🙂x" * 4_000):
        assert shown(text.encode()) == f"{text[:200]}…"


def test_files_that_are_not_yet_committed_are_read_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    target = Target(str(tmp_path), "2026-01-14", "plan", 1, source="")
    report = FileReport(*write_file(target, schemas.QUARANTINE, [batch([("empty", b"")])]))
    assert [line.reason for line in quarantined.examples(quarantined.written(tmp_path, [report]))] == ["empty"]
    (tmp_path / report.path).write_bytes(b"PAR1")
    with pytest.raises(JobError, match=f"{report.path} cannot be read back"):
        list(quarantined.written(tmp_path, [report]))

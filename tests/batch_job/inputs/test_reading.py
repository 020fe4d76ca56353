"""Every format through real Spark: each row comes back as it was written or with a reason, and none is left out."""

import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql

from batch_job.inputs import frames, reading
from batch_job.inputs.messages import Reason
from batch_job.inputs.source import Source, read_folder
from batch_job.run_record import COLUMNS, Columns, Format, Input
from batch_job.spark.failures import failing_in_one_line
from shared_model.errors import JobError
from shared_model.types import MAX_TEXT_BYTES
from tests.batch_job.inputs.written import DAY, write

_TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from(list("\",\r\n\0 \\'")))
NASTY = [
    'say "hi"',
    "a,b",
    "two\nlines",
    "\r",
    "\r\n",
    "a\rb",
    "\0",
    '"',
    '""',
    "\\",
    '\\"',
    "null",
    "🙂",
    "\ufeff",
    "#",
    " x ",
]


def found(root: Path, form: Format, columns: Columns = COLUMNS) -> Input:
    return Source(str(root), columns=columns).read(DAY) if form is Format.DELTA else read_folder(root, columns)


def judged(spark: SparkSession, source: Input) -> list[Row]:
    with reading.kept(spark, source, 2, lambda lines: lines) as lines:
        return list(lines.collect())


@contextmanager
def conf(spark: SparkSession, **values: str) -> Iterator[None]:
    names = {name.replace("_", "."): value for name, value in values.items()}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in names:
            spark.conf.unset(name)


@pytest.mark.parametrize("form", list(Format))
@examples(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(_TEXT, min_size=20, max_size=100), st.booleans())
def test_any_text_comes_back_or_has_a_reason(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, form: Format, texts: list[str], gz: bool
) -> None:
    texts = [*NASTY, *texts]
    root = tmp_path_factory.mktemp("day")
    write(root, form, [{"id": f"m{number}", "text": text} for number, text in enumerate(texts)], gz=gz)
    source = found(root, form)
    rows = judged(spark, source)
    assert source.lines == len(rows) == len(texts)
    read = {row["id"]: row["text"] for row in rows if row["reason"] is None}
    assert read == {f"m{number}": text for number, text in enumerate(texts) if text.strip()}
    assert [row["reason"] for row in rows if row["reason"]] == ["empty"] * (len(texts) - len(read))


def raw(form: Format, row: Mapping[str, Any]) -> bytes:
    if form is Format.CSV:
        return ",".join(map(str, row.values())).encode() + b"\r"
    return json.dumps({"key": row["key"], "body": row["body"]}).encode()


@pytest.mark.parametrize("form", [Format.CSV, Format.PARQUET, Format.DELTA])
def test_a_row_that_is_no_message_is_set_aside_as_its_line_or_its_json(
    spark: SparkSession, tmp_path: Path, form: Format
) -> None:
    rows = [
        {"n": 1, "key": "a", "body": "hello"},
        {"n": 2, "key": "b", "body": " "},
        {"n": 3, "key": "c", "body": "x" * (MAX_TEXT_BYTES + 1)},
        {"n": 4, "key": "", "body": "no id"},
        {"n": 5, "key": "a", "body": "again"},
    ]
    write(tmp_path, form, rows)
    read = judged(spark, found(tmp_path, form, Columns("key", "body")))
    assert [(row["id"], row["text"], row["raw"]) for row in read if row["reason"] is None] == [("a", "hello", None)]
    quarantine = {row["reason"]: (bytes(row["raw"]), row["id"], row["text"]) for row in read if row["reason"]}
    assert quarantine == {
        reason: (raw(form, row), None, None)
        for reason, row in zip(["empty", "too_long", "wrong_type", "duplicate_id"], rows[1:], strict=True)
    }


def test_parquet_nulls_and_bytes_that_are_no_text_are_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    texts = pa.array([b"\xff\xfe", None, b"fine"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"id": ["a", "b", "c"], "text": texts}), tmp_path / "a.parquet")
    rows = judged(spark, read_folder(tmp_path))
    assert {row["reason"]: row["raw"] for row in rows if row["reason"]} == {
        Reason.BAD_ENCODING: b'{"id": "a", "text": "\xff\xfe"}',
        Reason.WRONG_TYPE: b'{"id": "b", "text": null}',
    }


def test_csv_rows_that_do_not_fit_are_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'text,id\nhello,a\n\nno id\n"b ""1""\n2",b,one too many\nb\xff,b\n')
    rows = judged(spark, read_folder(tmp_path))
    assert [row["text"] for row in rows if row["id"] == "a"] == ["hello"]
    assert sorted((row["reason"], row["raw"]) for row in rows if row["reason"]) == [
        ("bad_encoding", b"b\xff,b"),
        ("empty", b""),
        ("wrong_type", b'"b ""1""\n2",b,one too many'),
        ("wrong_type", b"no id"),
    ]


@pytest.mark.parametrize("form", list(Format))
def test_pairs_are_read_where_a_column_holds_them(spark: SparkSession, tmp_path: Path, form: Format) -> None:
    write(tmp_path, form, [{"id": "a", "text": "one", "other": "two"}, {"id": "b", "text": "one", "other": ""}])
    rows = judged(spark, found(tmp_path, form, Columns(pair="other")))
    assert {(row["id"], row["text"], row["pair"], row["reason"]) for row in rows} == {
        ("a", "one", "two", None),
        (None, None, None, "empty"),
    }


def test_columns_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, Format.PARQUET, [{"a.b": "id", "the `text`": "hello"}])
    [row] = judged(spark, read_folder(tmp_path, Columns("a.b", "the `text`")))
    assert (row["id"], row["text"]) == ("id", "hello")


TALL = [{"id": f"m{number}", "text": f"one\n{number}\n" * 20} for number in range(60)]


def split_csv(spark: SparkSession, folder: Path) -> list[Row]:
    """Two files of tall records, cut by Spark at 700 bytes."""
    for name, rows in (("a", TALL[:30]), ("b", TALL[30:])):
        write(folder, Format.CSV, rows)
        (folder / "a.csv").rename(folder / f"{name}.part.csv")
    with conf(spark, spark_sql_files_maxPartitionBytes="700", spark_sql_files_openCostInBytes="1"):
        source = read_folder(folder)
        assert source.lines == 60
        return judged(spark, source)


def test_csv_records_that_spark_cuts_in_two_are_whole(spark: SparkSession, tmp_path: Path) -> None:
    assert {row["id"]: row["text"] for row in split_csv(spark, tmp_path)} == {row["id"]: row["text"] for row in TALL}


@pytest.mark.proof
def test_control_without_gathering_a_file_they_are_not(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "_whole_files", frames._lines)
    with pytest.raises((PySparkException, Py4JError)):
        split_csv(spark, tmp_path)


def damaged(folder: Path) -> Input:
    """Parquet in which one page's byte was changed after the run was planned."""
    pq.write_table(
        pa.table({"id": [f"m{number}" for number in range(500)], "text": ["hello"] * 500}),
        folder / "a.parquet",
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    source = read_folder(folder)
    content = (folder / "a.parquet").read_bytes()
    (folder / "a.parquet").write_bytes(content.replace(b"m250", b"n250", 1))
    return source


def test_a_damaged_page_fails_with_its_path_whatever_the_cluster_ignores(spark: SparkSession, tmp_path: Path) -> None:
    source = damaged(tmp_path)
    with (
        conf(spark, spark_sql_files_ignoreCorruptFiles="true"),
        pytest.raises(JobError, match=rf"^{tmp_path}/a\.parquet cannot be read: [^\n]*CRC checksum [^\n]*; restore it"),
        failing_in_one_line(),
    ):
        judged(spark, source)


def test_a_file_that_has_gone_since_is_named(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    source = damaged(folder)
    (folder / "a.parquet").unlink()
    with pytest.raises(JobError, match=rf"^{folder}/a\.parquet cannot be read: PATH_NOT_FOUND"), failing_in_one_line():
        judged(spark, source)


@pytest.mark.proof
def test_control_without_verifying_the_changed_byte_is_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "_NOTHING_LEFT_OUT", {})
    assert "n250" in {row["id"] for row in judged(spark, damaged(tmp_path))}


def cut_short(folder: Path) -> Input:
    """A gzip file that lost its end after the run was planned."""
    lines = b"".join(
        json.dumps({"id": f"m{number}", "text": f"{number * 7919}"}).encode() + b"\n" for number in range(9000)
    )
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    source = read_folder(folder)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines)[:-3000])
    return source


def test_a_file_cut_short_fails_with_its_path_whatever_the_cluster_ignores(spark: SparkSession, tmp_path: Path) -> None:
    source = cut_short(tmp_path)
    with (
        conf(spark, spark_sql_files_ignoreCorruptFiles="true"),
        pytest.raises(JobError, match=rf"^{tmp_path}/a\.jsonl\.gz cannot be read: EOFException: [^\n]*; restore it"),
        failing_in_one_line(),
    ):
        judged(spark, source)


@pytest.mark.proof
def test_control_a_cluster_that_ignores_damage_loses_rows_silently(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "_NOTHING_LEFT_OUT", {})
    source = cut_short(tmp_path)
    with conf(spark, spark_sql_files_ignoreCorruptFiles="true"):
        assert 0 < len(judged(spark, source)) < source.lines


def test_a_delta_day_has_neither_replaced_rows_nor_those_of_another_day(spark: SparkSession, tmp_path: Path) -> None:
    def put(day: str, text: str) -> None:
        rows = pa.table({"ds": [day], "id": ["a"], "text": [text]})
        write_deltalake(str(tmp_path), rows, partition_by=["ds"], mode="overwrite", predicate=f"ds = '{day}'")

    write_deltalake(str(tmp_path), pa.table({"ds": [DAY], "id": ["a"], "text": ["first"]}), partition_by=["ds"])
    put(DAY, "second")
    put("2026-01-15", "another day")
    assert [row["text"] for row in judged(spark, found(tmp_path, Format.DELTA))] == ["second"]
    # As a folder of Parquet it would have both.
    assert spark.read.parquet(f"{tmp_path}/ds={DAY}").count() == 2


def test_partition_values_and_file_names_are_taken_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    """Neither escaped again nor taken for a pattern."""
    rows = pa.table({"ds": [DAY] * 2, "kind": ["a b", "50% [x]"], "id": ["a", "b"], "text": ["one", "two"]})
    write_deltalake(str(tmp_path / "table"), rows, partition_by=["ds", "kind"])
    assert {row["text"] for row in judged(spark, found(tmp_path / "table", Format.DELTA))} == {"one", "two"}
    folder = tmp_path / "{day} [1]*"
    folder.mkdir()
    (folder / "a [b] %20?.jsonl").write_bytes(b'{"id": "a", "text": "hello"}\n')
    assert [row["text"] for row in judged(spark, read_folder(folder))] == ["hello"]


def test_a_url_reaches_spark_as_it_was_given(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / f"ds={DAY}", Format.PARQUET, [{"id": "a", "text": "hello"}])
    [row] = judged(spark, Source(f"file://{tmp_path}").read(DAY))
    assert (row["file"], row["text"]) == ("a.parquet", "hello")


def test_rows_are_spread_whatever_they_were_written_as(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, Format.CSV, [{"id": f"m{number}", "text": "hello"} for number in range(200)])
    frame: DataFrame = reading.as_they_lie(spark, read_folder(tmp_path), 2)
    counts = [row["count"] for row in frame.groupBy(sql.spark_partition_id()).count().collect()]
    assert len(counts) == 2
    assert min(counts) > 50


@pytest.mark.parametrize("ids", ["abc", "aba"])
def test_rows_meet_by_their_ids_only_where_one_comes_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: str
) -> None:
    write(tmp_path, Format.JSON_LINES, [{"id": it, "text": f"text {number}"} for number, it in enumerate(ids)])
    kept = spark.sparkContext._jsc.sc().getPersistentRDDs().size
    before, meet, met = kept(), reading.judged_lines, list[Input]()
    monkeypatch.setattr(reading, "judged_lines", lambda *given: (met.append(given[1]), meet(*given))[1])
    rows = judged(spark, read_folder(tmp_path))
    assert [bool(row["raw"]) for row in rows if row["reason"]] == [True] * len(met)
    assert [row["reason"] for row in rows if row["reason"]] == ["duplicate_id"] * (3 - len(set(ids)))
    assert len(met) == 3 - len(set(ids))
    assert kept() == before

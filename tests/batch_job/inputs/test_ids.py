"""Ids of any scalar type: Spark's text of them is the one that is written here, and no two values share one."""

import decimal
import math
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from batch_job.inputs import frames, ids, parquet, reading
from batch_job.inputs.source import Source, read_folder
from batch_job.run_record import Columns, Input
from shared_model.errors import BadInput, JobError
from tests.batch_job.inputs.written import DAY

_EPOCH = datetime(1970, 1, 1)
_SECOND, _DAY = 10**9, 86_400
#: Microseconds since 1970 of the years 1 to 9999, all that Python's own dates hold.
_MICROSECONDS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)


@dataclass(frozen=True)
class Kind:
    """A type of ids: values as Arrow stores them, and the text of each."""

    type: pa.DataType
    values: st.SearchStrategy[Any]
    text: Callable[[Any], str | None] = str


#: Each is a job of Spark's, so none are spent on shrinking.
few_examples = examples(
    max_examples=3, phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck)
)


def integers(kind: pa.DataType, signed: bool) -> Kind:
    bits = kind.bit_width
    lowest, highest = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return Kind(kind, st.integers(lowest, highest) | st.sampled_from([lowest, highest]))


def moment(microseconds: int) -> str:
    text = (_EPOCH + timedelta(microseconds=microseconds)).isoformat(sep=" ")
    return text.rstrip("0") if "." in text else text


def nanoseconds(value: int) -> str:
    seconds, rest = divmod(value, _SECOND)
    return f"{moment(seconds * 10**6)}.{rest:09d}"


def day(days: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=days)).isoformat()


def decimals(precision: int, scale: int) -> Kind:
    most = 10**precision - 1
    values = st.integers(-most, most).map(lambda value: decimal.Decimal(value).scaleb(-scale, decimal.Context(76)))
    return Kind(pa.decimal128(precision, scale), values, lambda value: f"{value:f}")


def timestamps(unit: str, microseconds: int, zone: str | None = None) -> Kind:
    values = _MICROSECONDS.map(lambda value: value // microseconds)
    return Kind(pa.timestamp(unit, zone), values, lambda value: moment(value * microseconds))


KINDS = {
    **{f"int{bits}": integers(getattr(pa, f"int{bits}")(), signed=True) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": integers(getattr(pa, f"uint{bits}")(), signed=False) for bits in (8, 16, 32, 64)},
    "dictionary": Kind(pa.dictionary(pa.int32(), pa.int64()), st.sampled_from([-1, 2**60])),
    "bool": Kind(pa.bool_(), st.booleans(), lambda value: str(value).lower()),
    "decimal": decimals(10, 2),
    "decimal_wide": decimals(38, 38),
    "date": Kind(pa.date32(), _MICROSECONDS.map(lambda value: value // (_DAY * 10**6)), day),
    "timestamp_s": timestamps("s", 10**6),
    "timestamp_ms": timestamps("ms", 1000),
    "timestamp_us": timestamps("us", 1),
    "timestamp_zone": timestamps("us", 1, "Europe/Berlin"),
    "timestamp_ns": Kind(pa.timestamp("ns"), st.integers(-(2**63), 2**63 - 1), nanoseconds),
    "timestamp_ns_zone": Kind(pa.timestamp("ns", "UTC"), st.integers(-(2**63), 2**63 - 1), nanoseconds),
    "time_ms": Kind(pa.time32("ms"), st.integers(0, _DAY * 1000 - 1), lambda value: moment(value * 1000)[11:]),
    "time_us": Kind(pa.time64("us"), st.integers(0, _DAY * 10**6 - 1), lambda value: moment(value)[11:]),
    "time_ns": Kind(pa.time64("ns"), st.integers(0, _DAY * _SECOND - 1), lambda value: nanoseconds(value)[11:]),
    "string": Kind(pa.string(), st.text(), str),
    "large_string": Kind(pa.large_string(), st.text(), str),
    "binary": Kind(pa.binary(), st.text().map(str.encode), bytes.decode),
    "fixed": Kind(pa.binary(12), st.binary(min_size=12, max_size=12), bytes.hex),
    "uuid": Kind(pa.uuid(), st.uuids().map(lambda value: value.bytes), lambda value: str(uuid.UUID(bytes=value))),
}
ODD = (0.0, -0.0, 0.1, math.nan, math.inf, -math.inf, None)
FLOATS = {"float": pa.float32(), "double": pa.float64()}
_STORED = {32: pa.int32(), 64: pa.int64()}


def stored(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Times are numbers here: Python's own hold no nanoseconds."""
    if pa.types.is_temporal(kind):
        return pa.array(values, _STORED[kind.bit_width]).view(kind)
    if isinstance(kind, pa.UuidType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return (
        pa.array(values, kind.value_type).dictionary_encode()
        if pa.types.is_dictionary(kind)
        else pa.array(values, kind)
    )


def types(path: Path, columns: list[str]) -> dict[str, str]:
    """As planning sees them."""
    found = {}
    for name in columns:
        with path.open("rb") as content:
            found[name] = parquet.id_type(content, name)
    return found


def texts(spark: SparkSession, path: Path, columns: list[str]) -> dict[str, list[Any]]:
    """Each column as the ids of a day: by the type that planning found, as Spark reads and writes it."""
    found = types(path, columns)
    schema = ", ".join(f"`{name}` {ids.read_as(found[name])}" for name in columns)
    frame = frames.parquet_files(spark, schema, str(path.parent), [str(path)])
    as_bytes = (f"cast({ids.text_sql(found[name], f'`{name}`')} as binary) as `{name}`" for name in columns)
    rows = frame.selectExpr(*as_bytes).collect()
    return {name: [None if row[name] is None else bytes(row[name]).decode() for row in rows] for name in columns}


@few_examples
@given(st.data(), st.booleans())
def test_spark_says_the_text_that_is_promised(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, own_schema: bool
) -> None:
    values = {name: [None, *data.draw(st.lists(kind.values, min_size=10, max_size=10))] for name, kind in KINDS.items()}
    path = tmp_path_factory.mktemp("day") / "a.parquet"
    table = pa.table({name: stored(KINDS[name].type, column) for name, column in values.items()})
    pq.write_table(table, path, store_schema=own_schema)
    expected = {
        name: [None if value is None else KINDS[name].text(value) for value in column]
        for name, column in values.items()
    }
    assert texts(spark, path, list(KINDS)) == expected


@few_examples
@given(st.data())
def test_a_float_comes_back_from_its_text_and_what_is_no_number_is_no_id(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    columns = {
        name: [*ODD, *data.draw(st.lists(st.floats(width=kind.bit_width), min_size=50, max_size=50))]
        for name, kind in FLOATS.items()
    }
    path = tmp_path_factory.mktemp("day") / "a.parquet"
    pq.write_table(pa.table({name: pa.array(column, FLOATS[name]) for name, column in columns.items()}), path)
    for name, found in texts(spark, path, list(columns)).items():
        number = np.float32 if name == "float" else np.float64
        for value, text in zip(columns[name], found, strict=True):
            if value is None or not math.isfinite(value):
                assert text is None
            else:
                assert number(text).tobytes() == number(value).tobytes()


#: Types of Spark's, and SQL of values that are hard to tell.
TOLD = {
    "tinyint": ["-128", "127"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "decimal(38,10)": ["'-0.0000000001'", "'1234567890123456789012345678'"],
    "float": ["'0.1'", "'-1.0E-40'"],
    "double": ["'-0.0'", "'1.7976931348623157E308'"],
    "boolean": ["true", "false"],
    "date": ["'0001-01-01'", "'9999-12-31'"],
    "timestamp": ["'2026-03-29 02:30:00.000001Z'", "'1969-12-31 23:59:59.9Z'"],
    "timestamp_ntz": ["'2026-03-29 02:30:00'", "'0001-01-01 00:00:00.000001'"],
    "string": ["'007'", "''"],
}


def test_ids_come_back_from_their_texts_with_their_type_whatever_the_zone(spark: SparkSession) -> None:
    rows = [", ".join(f"cast({of[row]} as {kind}) as `{kind}`" for kind, of in TOLD.items()) for row in range(2)]
    values = spark.sql(" union all ".join(f"select {row}" for row in rows))
    texts = values.selectExpr(*(f"cast(`{kind}` as string) as `{kind}`" for kind in TOLD)).collect()
    elsewhere = spark.newSession()
    elsewhere.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    named = ", ".join(f"`{kind}` string" for kind in TOLD)
    back = elsewhere.createDataFrame(texts, named).selectExpr(
        *(f"{ids.value_sql(kind, f'`{kind}`')} as `{kind}`" for kind in TOLD)
    )
    assert [field.dataType for field in back.schema] == [field.dataType for field in values.schema]
    assert back.collect() == values.collect()


@pytest.mark.parametrize(
    ("text", "kind"),
    [("x", "bigint"), ("007", "bigint"), ("1.15", "decimal(10,1)"), ("128", "tinyint"), ("2026-01-14", "timestamp")],
)
def test_a_text_of_another_type_is_no_id_of_this_one(spark: SparkSession, text: str, kind: str) -> None:
    frame = spark.createDataFrame([(text,)], "id string")
    with pytest.raises(PySparkException, match=re.escape(f"id {text} is no {kind}: read one source and day")):
        frame.selectExpr(ids.value_sql(kind, "id")).collect()


def test_bytes_are_not_told_by_their_texts() -> None:
    with pytest.raises(BadInput, match=r"^id: is of type binary: ids of bigint, boolean, date, "):
        ids.value_sql("binary", "id")


def judged(spark: SparkSession, source: Input) -> dict[str, str | None]:
    """Id → reason, through all that a night does with a row."""
    rows = reading.judged_lines(spark, source, 2).collect()
    return {row["id"] if row["reason"] is None else bytes(row["raw"]).decode(): row["reason"] for row in rows}


def test_files_of_one_day_may_have_ids_of_several_types(spark: SparkSession, tmp_path: Path) -> None:
    texts = ["hello"] * 3
    columns = {
        "a": pa.array([1, 2, None], pa.int32()),
        "b": pa.array([2, 2**53 + 1, 2**63 - 1], pa.int64()),
        "c": pa.array(["1", "x", "y"]),
        "d": pa.array([1.5, math.nan, 2.0]),
    }
    for name, column in columns.items():
        pq.write_table(pa.table({"key": column, "text": texts}), tmp_path / f"{name}.parquet")
    source = read_folder(tmp_path, Columns(id="key"))
    assert ids.note(source) == "ids of type double and int32 and int64 are read as text"
    assert judged(spark, source) == {
        "1": None,
        "2": None,
        '{"key": null, "text": "hello"}': "wrong_type",
        '{"key": "2", "text": "hello"}': "duplicate_id",
        "9007199254740993": None,
        "9223372036854775807": None,
        '{"key": "1", "text": "hello"}': "duplicate_id",
        "x": None,
        "y": None,
        "1.5": None,
        "2.0": None,
    }


def test_ids_of_a_delta_table_are_read_as_those_of_its_files(spark: SparkSession, tmp_path: Path) -> None:
    moments = [datetime(2026, 1, 14, 2, 0, 0, 250_000, UTC), datetime(1, 1, 1, tzinfo=UTC)]
    columns = {
        "long": (pa.array([7, -7]), {"7", "-7"}),
        "decimal": (pa.array([decimal.Decimal("1.50"), decimal.Decimal("0.00")]), {"1.50", "0.00"}),
        "moment": (pa.array(moments, pa.timestamp("us", "UTC")), {"2026-01-14 02:00:00.25", "0001-01-01 00:00:00"}),
    }
    table = {name: column for name, (column, _) in columns.items()}
    write_deltalake(str(tmp_path), pa.table({**table, "text": ["a", "b"], "ds": [DAY] * 2}), partition_by=["ds"])
    for name, (_, expected) in columns.items():
        source = Source(str(tmp_path), columns=Columns(id=name)).read(DAY)
        assert judged(spark, source) == dict.fromkeys(expected)
    assert ids.note(source) == "ids of type timestamp[us, tz=UTC] are read as text"


@pytest.mark.parametrize(
    ("column", "named"),
    [
        (pa.array([[1]]), "list<element: int64>"),
        (pa.array([{"a": 1}]), "struct<a: int64>"),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "map<string, int64.*>"),
        (pa.array([decimal.Decimal(1)], pa.decimal256(50, 2)), r"decimal256\(50, 2\)"),
        (pa.nulls(1), "null"),
    ],
)
def test_what_is_no_scalar_is_refused_by_name(tmp_path: Path, column: pa.Array, named: str) -> None:
    pq.write_table(pa.table({"id": column, "text": ["hello"]}), tmp_path / "a.parquet")
    with pytest.raises(JobError, match=rf"has column 'id' as {named}, which is not read as an id: cast it to string"):
        read_folder(tmp_path)


def test_timestamps_that_spark_would_cut_are_refused(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array([1], pa.timestamp("ns")), "text": ["hello"]})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    with pytest.raises(
        JobError, match=r"has column 'id' as timestamp \(INT96\), which is not read as an id: cast it to string"
    ):
        read_folder(tmp_path)


def test_a_text_is_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "text": [7]}), tmp_path / "a.parquet")
    with pytest.raises(JobError, match="has column 'text' as int64, not as string: cast it to string, or name another"):
        read_folder(tmp_path)


def test_what_is_text_already_is_planned_as_it_always_was(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "text": ["hello"]}), tmp_path / "a.parquet", store_schema=False)
    source = read_folder(tmp_path)
    assert (ids.note(source), source.files[0].id_type) == ("", "")

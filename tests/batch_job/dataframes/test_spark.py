"""In Spark, classic and Connect, by a function of frames and one of SQL: the scores of the nightly run, bit for bit."""

import itertools
import json
import re
import runpy
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

import batch_job
from batch_job.dataframes.columns import SCORE_COLUMNS
from batch_job.scoring.options import ScoringOptions
from shared_model import demo_messages
from shared_model.errors import BadInput
from shared_model.releases.store import Release
from shared_model.settings import StateSettings
from tests import spark_classes
from tests.batch_job.conftest import attempt, planned, write_day
from tests.batch_job.dataframes import spark_program
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.default_release

#: Some come twice, of any length.
TEXTS = [*itertools.islice(demo_messages.texts(seed=4), 150), "pin " * 90, "hello", "hello"]
#: Columns that the nightly run's table has, too.
SHARED = ["label", "score", "release", "precision", "truncated", "top_k", "vector", "abstained", "heads"]


@pytest.fixture
def named(state: StateSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names the store of the default release."""
    monkeypatch.setenv("TANDEM_STATE", str(state.state))
    monkeypatch.setenv("TANDEM_RELEASES", state.releases)


def rows_of(collected: Sequence[Row]) -> dict[int, dict[str, Any]]:
    rows = [row.asDict(recursive=True) for row in collected]
    return {int(row["id"]): {name: row[name] for name in SHARED} for row in rows}


def test_every_way_gives_the_scores_of_the_nightly_run(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    release: Release,
    named: None,
) -> None:
    write_day(state, [json.dumps({"id": str(number), "text": text}).encode() for number, text in enumerate(TEXTS)])
    attempt(spark, state, client, options, planned(state, client))
    nightly = rows_of(batch_job.read_scores(spark, state.scores_table).collect())
    assert len(nightly) == len(TEXTS)

    scorer, rows = batch_job.scorer(release.id), [(number, text) for number, text in enumerate(TEXTS)]
    frame = spark.createDataFrame(rows, "id long, text string").repartition(2)
    typed = batch_job.read_scores(spark, state.scores_table, id=frame.schema["id"])
    assert sorted(row.id for row in typed.collect()) == [number for number, _ in rows]
    assert typed.drop("id").schema == batch_job.read_scores(spark, state.scores_table).drop("id").schema
    assert rows_of(frame.mapInArrow(scorer, scorer.schema).collect()) == nightly
    by_column = frame.select("id", scorer.udf()("text").alias("scores"))
    assert rows_of(by_column.select("id", "scores.*").collect()) == nightly
    here = scorer.score(pa.table({"id": [number for number, _ in rows], "text": TEXTS}))
    found = {row["id"]: {name: row[name] for name in SHARED} for row in here.to_pylist()}
    assert {number: {**row, "heads": dict(row["heads"])} for number, row in found.items()} == nightly


def test_all_columns_of_a_frame_can_be_kept(spark: SparkSession, tiny: Release) -> None:
    schema = "id decimal(20,0), text string, `when it came` timestamp, tags map<string, array<int>>"
    rows = [(Decimal(7), "card", None, {"a": [1]}), (Decimal(8), None, None, None)]
    frame = spark.createDataFrame(rows, schema)
    scorer = batch_job.scorer().keeping(frame.schema)
    scored = frame.mapInArrow(scorer, scorer.schema)
    assert scored.columns == [*frame.columns, *SCORE_COLUMNS.names]
    assert scored.schema[: len(frame.columns)] == frame.schema
    assert scored.select(*(f"`{name}`" for name in frame.columns)).collect() == frame.collect()
    assert [row.reason for row in scored.collect()] == [None, "wrong_type"]
    with pytest.raises(BadInput, match=r"^frame: has a column abstained, as the scores have; rename or drop it$"):
        scorer.keeping(scored.schema)


#: Types of ids in Spark, and a value of each.
IDS: dict[str, Any] = {
    "string": "9f0c1c1e-6d0b-4d43-9a38-6a1a1c1d3b5e",
    "bigint": 2**62 + 1,
    "tinyint": -7,
    "decimal(38,10)": Decimal("12345678901234567890.0123456789"),
    "date": date(1969, 12, 31),
    "timestamp": datetime(2026, 1, 14, 10, 0, 0, 1),
    "timestamp_ntz": datetime(1, 1, 1, 0, 0, 0, 999_999),
    "binary": bytearray(b"\xff\x00"),
    "boolean": True,
    "double": 0.1,
}


@pytest.mark.parametrize("kind", IDS)
def test_ids_of_any_type_are_returned_with_it(spark: SparkSession, tiny: Release, kind: str) -> None:
    frame = spark.createDataFrame([(IDS[kind], "card"), (None, "my card")], f"`the id` {kind}, text string")
    scorer = batch_job.scorer(id=frame.schema["the id"])
    scored = frame.coalesce(1).mapInArrow(scorer, scorer.schema)
    assert scored.schema["the id"] == frame.schema["the id"]
    assert [(row["the id"], row.reason) for row in scored.collect()] == [(IDS[kind], None), (None, None)]


def test_ids_named_alone_are_returned_as_text_where_they_have_one(spark: SparkSession, tiny: Release) -> None:
    scorer = batch_job.scorer()
    frame = spark.createDataFrame([(7, "card")], "id bigint, text string")
    assert [row.id for row in frame.mapInArrow(scorer, scorer.schema).collect()] == ["7"]
    batch = pa.record_batch({"id": [b"\xff"], "text": ["card"]})
    with pytest.raises(BadInput, match=r"'id' as binary, whose values are no text: `id=frame.schema\['id'\]` returns"):
        next(scorer(iter([batch])))


def test_a_missing_column_is_named_where_spark_says_why_it_failed(spark: SparkSession, tiny: Release) -> None:
    scorer = batch_job.scorer()
    frame = spark.createDataFrame([(1, "card")], "id long, body string")
    with pytest.raises(PySparkException, match="BadInput: frame: has no column 'text', and has id, body"):
        frame.mapInArrow(scorer, scorer.schema).collect()


@pytest.mark.heavy
def test_on_connect_no_spark_context_is_needed(tiny: Release, tmp_path: Path) -> None:
    found = spark_program.run(
        tmp_path, "connect", {"PYTHONPATH": str(REPOSITORY), "SPARK_SUBMIT_OPTS": spark_classes.OPTIONS}
    )
    assert found["session"] == "pyspark.sql.connect.session"
    spark_program.check(found)


def test_the_example_of_the_readme_runs(named: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (REPOSITORY / "batch_job" / "README.md").read_text()
    [block] = [it for it in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "scorer" in it]
    program = tmp_path / "shown.py"
    program.write_text(block)
    runpy.run_path(str(program))
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert "card_arrival" in first
    assert "wrong_type" in second

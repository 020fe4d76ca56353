"""A user's program, for any version of Spark and any place where the scorer is installed."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

import batch_job
from batch_job.dataframes.columns import SCORE_COLUMNS

#: Of the messages that it scores.
TEXTS: tuple[str | None, ...] = ("where is my card", None, " ", "please", "where is my card", "slowly is my card")

_SOURCE = """
import json, sys
import {package} as batch_job
from pyspark.sql import SparkSession

builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
spark = (builder.remote("local[2]") if sys.argv[1] == "connect" else builder.master("local[2]")).getOrCreate()
rows = [(number, text) for number, text in enumerate(json.loads(sys.argv[2]))]
frame = spark.createDataFrame(rows, "id long, body string").repartition(2)
scorer = batch_job.scorer(text="body", id=frame.schema["id"])
frame.createOrReplaceTempView("messages")
spark.udf.register("intent", scorer.udf())
keeping = scorer.keeping(frame.schema)
found = {{
    "plain": frame.mapInArrow(scorer, scorer.schema),
    "keeping": frame.mapInArrow(keeping, keeping.schema),
    "sql": spark.sql("select id, intent.* from (select id, intent(body) as intent from messages)"),
}}
rows = {{name: [row.asDict(recursive=True) for row in it.collect()] for name, it in found.items()}}
print(json.dumps({{"session": type(spark).__module__, "version": spark.version, **rows}}))
spark.stop()
"""


def run(
    folder: Path, kind: str, environment: Mapping[str, str], package: str = "batch_job", python: str = sys.executable
) -> dict[str, Any]:
    """The rows of all the ways in which Spark can score. `kind`: of the session, "connect" or "classic"."""
    program = folder / "program.py"
    program.write_text(_SOURCE.format(package=package))
    # Those of the suite's own Spark, which may be another one.
    others = {name: it for name, it in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    given = {**others, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": python, **environment}
    command = [python, str(program), kind, json.dumps(TEXTS)]
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


def check(found: Mapping[str, Any]) -> None:
    """Raises: AssertionError where a way gave other rows than a call of the scorer here."""
    scored = batch_job.scorer().score(pa.table({"text": TEXTS})).select(SCORE_COLUMNS.names)
    expected = [{**row, "heads": row["heads"] and dict(row["heads"])} for row in scored.to_pylist()]
    by_way = {name: sorted(found[name], key=lambda row: row["id"]) for name in ("plain", "keeping", "sql")}
    for name, rows in by_way.items():
        assert [{it: row[it] for it in SCORE_COLUMNS.names} for row in rows] == expected, name
        assert [row["id"] for row in rows] == [*range(len(TEXTS))]
    assert [row["body"] for row in by_way["keeping"]] == [*TEXTS]

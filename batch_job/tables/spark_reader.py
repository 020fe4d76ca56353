"""Committed scores for Spark, which has no Delta source here."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from batch_job import identity
from batch_job.identity import Tables
from batch_job.inputs import delta, frames, ids
from batch_job.shards import schemas, shard_files
from batch_job.tables.table import partition_filter, read_file, refuse_earlier, warn_unchecked
from shared_model import settings
from shared_model.errors import JobError
from shared_model.objects import Location, is_url
from shared_model.settings import StateSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField


def read_scores(
    spark: "SparkSession",
    table: Location | None = None,
    ds: str | None = None,
    source: str | None = None,
    verify: bool = True,
    id: "StructField | None" = None,
) -> "DataFrame":
    """The committed scores as a Spark DataFrame; of one day and of one source, `archive` or `deferred`, where given.

    Spark has no Delta source here, and the folder read as Parquet would show replaced and unfinished rows too.
    `table`: default that of the input which the environment sets, STATE/scores without. `verify`: executors first hold
    every file against the hash in its name, which page checksums, checked in any case, leave little to find; where
    names have none, one line on standard error says so. `id`: the field of the messages' ids, `frame.schema["id"]`,
    whose type is that of the ids that are returned; without it they are text, as in the table.
    Raises: JobError when a file is damaged, when the table is not there or asks for a newer reader; BadInput for a type
    that ids cannot be returned with.
    """
    if id is not None:
        text = read_scores(spark, table, ds, source, verify)
        return text.selectExpr(f"{ids.value_sql(id.dataType.simpleString(), 'id')} as id", *text.columns[1:])
    if table is None:
        state = settings.load(StateSettings)
        table = Tables.for_input(state, identity.configured_input(state)).scores
    folder = str(table)
    if (found := delta.find_table(folder)) is None:
        raise JobError(f"{folder} is no scores table; run the nightly job first, or check TANDEM_SCORES")
    refuse_earlier(found)
    files = found.file_uris(file_pruning_predicate=partition_filter(ds, source))
    if not files:
        return spark.createDataFrame([], schemas.SCORES_DDL)
    if verify:
        warn_unchecked(found, ds, source)
    if is_url(folder):
        # By executors, through this package: Spark needs no driver for the URL. Hashes are always verified.
        uris = spark.createDataFrame(pa.table({"uri": pa.array(files, pa.string())})).repartition(len(files))
        return uris.mapInArrow(_rows_of, schemas.SCORES_DDL)
    if verify:
        _refuse_damaged(spark, files)
    return frames.parquet_files(spark, schemas.SCORES_DDL, folder, files)


def _rows_of(uris: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """mapInArrow: all columns of these files, those of their partition included."""
    for uri in (uri for batch in uris for uri in batch.column("uri").to_pylist()):
        partition = {column: re.search(f"/{column}=([^/]*)/", uri) for column in ("ds", "source")}
        values = {column: found[1] for column, found in partition.items() if found}
        for batch in read_file(uri, schemas.SCORES.names, "score the day again"):
            added = [pa.array([values[column]] * batch.num_rows) for column in ("ds", "source")]
            names = [*batch.schema.names, "ds", "source"]
            yield pa.RecordBatch.from_arrays([*batch.columns, *added], names)


def _refuse_damaged(spark: "SparkSession", files: Sequence[str]) -> None:
    """Hold every file against the hash in its name, in Spark's JVM: a reader's Python workers may lack our packages."""
    if not (named := [file for file in files if shard_files.has_hash_in_name(file)]):
        return
    damaged = frames.files_with_another_hash(spark, named, shard_files.NAMED_HASH).collect()
    if damaged:
        first = damaged[0].path.removeprefix("file:")
        raise JobError(f"{first} is not as it was written, one of {len(damaged)} such files; score the day again")

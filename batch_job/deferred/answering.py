"""Scores of deferred texts, from the day's rows or from Spark, and the texts that cannot be scored."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from batch_job.deferred.scores import DeferredScores, Row
from batch_job.scoring import models, rows, windows
from batch_job.scoring.bisection import Failure, isolate_failures
from batch_job.scoring.options import ScoringOptions
from batch_job.shards import schemas
from batch_job.spark import gpus, task_context
from batch_job.spark.session import slots_of
from shared_model.encoding import Text
from shared_model.errors import JobError
from shared_model.releases.store import Release

#: How often a text is tried by itself before it counts as the cause.
ATTEMPTS = 2
#: Texts that may fail by themselves before the others are left to the next run.
MOST_POISON = 20

#: A text that any release can score. If it fails, the texts are not the cause.
_HARMLESS = "hello"
_TEXTS = pa.schema([("id", pa.string()), ("text", pa.string()), ("pair", pa.string())])


class _NoScore(Exception):
    """A job left texts out."""


#: Errors of a failed Spark job. A lost JVM raises another one, and no text is the cause.
_JOB_FAILED = (PySparkException, Py4JJavaError, _NoScore)


def scored(
    spark: SparkSession, texts: Sequence[Text], release: Release, options: ScoringOptions, scores: DeferredScores
) -> Mapping[Text, Row | Failure | None]:
    """The row of each text, or why it has none; None where it was not tried, because too many others had failed.

    What the model cannot tell apart is run once, and not at all where the day holds its score by the same release at a
    precision that engines make of the same demand. Rows that were computed now have a `batch_rows` besides.

    Raises: JobError when not even a harmless text can be scored, or the table cannot be read.
    """
    distinct, encoder = list(dict.fromkeys(texts)), release.encoder()
    keys = [encoder.key(encoding) for encoding in encoder.encode_many(distinct)]
    known = scores.scored(set(keys), options.compiled)
    new = {key: text for key, text in zip(keys, distinct, strict=True) if key not in known}
    harmless: Text = (_HARMLESS, _HARMLESS) if release.manifest.reads.pairs else _HARMLESS
    run = partial(_tried, partial(_score, spark, options=options), harmless)
    computed = isolate_failures(run, list(new.values()), _JOB_FAILED, MOST_POISON)
    found = {**known, **dict(zip(new, computed, strict=True))}
    return {text: found[key] for text, key in zip(distinct, keys, strict=True)}


def reason(failure: Failure) -> str:
    """The reason that a request with a text that cannot be scored ends with."""
    return f"the nightly run tried it {ATTEMPTS} times by itself: {_error_line(failure.error)}"


def _tried(score: Callable[[Sequence[Text]], list[Row]], harmless: Text, texts: Sequence[Text]) -> list[Row]:
    """Score them; one that failed by itself once more, when it is certain that others can be scored."""
    try:
        return score(texts)
    except _JOB_FAILED:
        if len(texts) > 1:
            raise
    try:
        score([harmless])
    except _JOB_FAILED as error:
        raise JobError(
            f"not even a harmless text can be scored, so the texts are not the cause: {_error_line(error)}"
        ) from error
    return score(texts)


def _error_line(error: Exception) -> str:
    """The line of a Spark error with the error of the worker."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception"))]
    return (named or lines or ["an error without a message"])[-1 if named else 0]


def _score(spark: SparkSession, texts: Sequence[Text], options: ScoringOptions) -> list[Row]:
    """Their rows, in the order of the texts."""
    pairs = [(text, None) if isinstance(text, str) else text for text in texts]
    numbered = [{"id": str(number), "text": text, "pair": pair} for number, (text, pair) in enumerate(pairs)]
    frame = spark.createDataFrame(pa.Table.from_pylist(numbered, schema=_TEXTS)).repartition(slots_of(spark))
    score, profile = partial(score_texts, options=options), gpus.scoring_profile(spark)
    found = frame.mapInArrow(score, schemas.ANSWERS_DDL, profile=profile).toArrow().to_pylist()
    if len(found) < len(texts):
        raise _NoScore(f"no score for {len(texts) - len(found)} of {len(texts)} texts")
    return sorted(found, key=lambda row: int(row["id"]))


def score_texts(batches: Iterator[pa.RecordBatch], options: ScoringOptions) -> Iterator[pa.RecordBatch]:
    """mapInArrow: score deferred texts; a row also says how many rows its engine batch had."""
    model = models.open_model(options, task_context.task_threads())
    for window in windows.score_windows(batches, rows.texts, model, options):
        yield rows.score_rows(window, model).append_column("batch_rows", pa.array(window.batch_rows))

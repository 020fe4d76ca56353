"""INT8 against half precision on a sample of the rows just written: both service levels give the same labels."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from batch_job.checks import gate
from batch_job.progress import Progress, log
from batch_job.run_record import Agreement
from batch_job.scoring import models, rows, windows
from batch_job.scoring.options import ScoringOptions
from batch_job.shards import head_columns, tally
from batch_job.shards.head_columns import HeadColumns
from batch_job.shards.schemas import HEAD_COLUMNS_DDL
from batch_job.shards.shard_files import Target
from batch_job.shards.tally import Tally
from batch_job.spark import gpus, task_context
from batch_job.spark.session import slots_of
from shared_model.errors import ReleaseError
from shared_model.evaluation.agreement import RULES
from shared_model.heads import Heads
from shared_model.output import Floats, OutputSpec
from shared_model.releases.store import Release
from shared_model.types import Device, Precision

#: Texts compared, of days that hold so many: those with the lowest hashes, so that the same day has the same sample.
SAMPLE = 2_000
#: Texts that are worth compiling one more engine for.
_TEXTS_PER_TASK = 1_000

#: The prefix of its tasks' names in their tallies.
_TASK = "gate-"

_ANSWERS = ("text_hash", *HeadColumns._fields, "heads")
_ANSWERS_DDL = f"text_hash string, {HEAD_COLUMNS_DDL}"


def measure(
    messages: DataFrame, sample: pa.Table, release: Release, options: ScoringOptions, target: Target
) -> Agreement | None:
    """Score the sample's texts in the other precision, and compare. None where the release has no INT8 for CPU.

    messages: columns id, text_hash, text and pair of all messages, cheap to read again.
    sample: as `contents.read` makes it. target: of the attempt, beside whose files tasks write their tallies.
    """
    try:
        release.manifest.variant(Precision.INT8, Device.CPU)
    except ReleaseError:
        return None
    if not sample.num_rows:
        return Agreement(0, 0, 0, 0)
    written_in_int8 = sample.column("precision")[0].as_py() == Precision.INT8
    device = options.device if written_in_int8 else Device.CPU
    other = replace(options, int8=not written_in_int8, device=device)
    log(f"gate: {sample.num_rows:,} texts with {other.precision.upper()}, to compare")
    with Progress("gate", "texts", sample.num_rows, tally.RowsDone(target, _TASK)):
        answers = _score(messages, sample, other, target)
    tally.remove(target, _TASK)
    half, int8 = (answers, sample) if written_in_int8 else (sample, answers)
    return compare(half, int8, release.heads)


def compare(half: pa.Table, int8: pa.Table, heads: Heads) -> Agreement:
    """Both have the columns of `_ANSWERS`, each text once. A text that one of them lacks does not
    agree. Of several heads, the one that agrees least where half precision is clear, and the least share of all."""
    parts = zip(heads.specs, _parts(half, heads), _parts(int8, heads), strict=True)
    found = [replace(_compare(one, other, spec.output), head=spec.name) for spec, one, other in parts]
    if len(found) == 1:
        return replace(found[0], head="")
    # A head with too few clear texts is not judged, and must not hide one that is.
    weakest = min(found, key=lambda it: (it.clear < gate.FEWEST_CLEAR, it.clear_share))
    return replace(weakest, agreeing=min(it.agreeing for it in found))


def _parts(answers: pa.Table, heads: Heads) -> list[pa.Table]:
    """The columns text_hash and HeadColumns of each head."""
    hashes = answers.column("text_hash")
    return [pa.table({"text_hash": hashes, **it._asdict()}) for it in head_columns.decode(answers, heads)]


def _compare(half: pa.Table, int8: pa.Table, output: OutputSpec) -> Agreement:
    hashes = pa.chunked_array([*half.column("text_hash").chunks, *int8.column("text_hash").chunks]).unique()
    reference, has_reference = _dense(half, hashes, output)
    scores, has_scores = _dense(int8, hashes, output)
    rules = RULES[output.kind]
    agrees = rules.agrees(scores, reference) & has_scores & has_reference
    clear = rules.clear(reference) & has_reference
    return Agreement(len(hashes), int(agrees.sum()), int(clear.sum()), int((agrees & clear).sum()))


def _score(messages: DataFrame, sample: pa.Table, options: ScoringOptions, target: Target) -> pa.Table:
    """Answers to the texts of the sample, but for those that fail by themselves."""
    spark = messages.sparkSession
    sampled = sql.broadcast(spark.createDataFrame(sample.select(["text_hash"])))
    texts = (
        messages.select("id", "text_hash", "text", "pair")
        .join(sampled, "text_hash", "left_semi")
        .dropDuplicates(["text_hash"])
        .repartition(min(slots_of(spark), -(-sample.num_rows // _TEXTS_PER_TASK)))
    )
    answer, profile = partial(_answer, options=options, target=target), gpus.scoring_profile(texts.sparkSession)
    return texts.mapInArrow(answer, _ANSWERS_DDL, profile=profile).toArrow()


def _answer(batches: Iterator[pa.RecordBatch], options: ScoringOptions, target: Target) -> Iterator[pa.RecordBatch]:
    """mapInArrow: score texts of the sample."""
    model = models.open_model(options, task_context.task_threads())
    counted, ends = Tally(target, f"{_TASK}{task_context.task_number()}"), [0]

    def read() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ends.append(ends[-1] + batch.num_rows)
            yield batch

    def scored(number: int, count: int) -> None:
        counted.count(_TASK, ends[number] + count)

    for window in windows.score_windows(read(), rows.texts, model, options, options.poison, scored):
        yield rows.score_rows(window, model).select(list(_ANSWERS))
    counted.count(_TASK, ends[-1])
    counted.write()


def _dense(answers: pa.Table, hashes: pa.Array, output: OutputSpec) -> tuple[Floats, NDArray[np.bool_]]:
    """Scores (texts, width) in the order of `hashes`, and which texts have any.

    Labels that were not kept count as 0: they come after those that were, and decide nothing.
    """
    places = pc.index_in(hashes, value_set=answers.column("text_hash").combine_chunks())
    present = np.asarray(pc.is_valid(places))
    found = answers.take(places.drop_null()).combine_chunks()
    scores = np.zeros((len(hashes), output.width), np.float32)
    if output.names:
        best = found.column("top_k").combine_chunks()
        columns = pc.index_in(pc.struct_field(best.flatten(), "label"), value_set=pa.array(output.names))
        of_row = np.repeat(np.flatnonzero(present), pc.list_value_length(best))
        scores[of_row, columns] = pc.struct_field(best.flatten(), "score")
    else:
        vectors = found.column("vector").combine_chunks().flatten()
        scores[present] = np.asarray(vectors).reshape(-1, output.width)
    return scores, present

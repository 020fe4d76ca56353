"""INT8 against half precision: counted as defined for each kind of output, and measured by real engines in Spark."""

from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
import redis
from pyspark.sql import SparkSession

from batch_job.attempt import open_attempt
from batch_job.checks import agreement, contents
from batch_job.checks.examination import Written
from batch_job.identity import Tables
from batch_job.run_record import Agreement
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import NightlySettings
from batch_job.shards.shard_files import Target
from batch_job.tables.fence import Fence
from shared_model import demo_messages
from shared_model.heads import Heads
from shared_model.output import OutputKind, OutputSpec
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, message, planned, write_day
from tests.batch_job.shards import written
from tests.shared_model import small_release

pytestmark = pytest.mark.default_release

LABELS = OutputSpec(OutputKind.SINGLE_LABEL, written.NAMES, 3)
TEXTS = list(dict.fromkeys(islice(demo_messages.texts(seed=11), 400)))[:150]


def rows_of(texts: list[str], labels: list[str], scores: list[tuple[float, float]] | None = None) -> pa.Table:
    return pa.Table.from_batches([written.batch(texts, labels, scores or ())])


def test_rows_are_compared_by_their_text_whatever_their_order() -> None:
    half = rows_of(["a", "b", "c"], ["yes", "no", "perhaps"])
    int8 = rows_of(["c", "a", "b"], ["perhaps", "yes", "yes"])
    assert agreement.compare(half, int8, Heads.of(LABELS)) == Agreement(3, 2, 3, 2)


def test_only_half_precision_says_what_is_clear() -> None:
    near, clear = (0.45, 0.40), (0.50, 0.39)
    half = rows_of(["a", "b"], ["yes", "yes"], [near, clear])
    int8 = rows_of(["a", "b"], ["no", "no"], [clear, near])
    assert agreement.compare(half, int8, Heads.of(LABELS)) == Agreement(2, 0, 1, 0)


def test_a_text_that_int8_gives_no_answer_to_does_not_agree() -> None:
    # "yes" is the first label: an answer that is not there must not read as it.
    half = rows_of(["a", "b"], ["yes", "yes"])
    assert agreement.compare(half, half.slice(0, 1), Heads.of(LABELS)) == Agreement(2, 1, 2, 1)
    assert agreement.compare(half, half.slice(0, 0), Heads.of(LABELS)) == Agreement(2, 0, 2, 0)


def with_vectors(texts: list[str], vectors: list[list[float]]) -> pa.Table:
    labelled = rows_of(texts, ["yes"] * len(texts))
    return labelled.set_column(labelled.schema.get_field_index("vector"), "vector", pa.array(vectors))


def test_embeddings_agree_by_their_angle() -> None:
    output = OutputSpec(OutputKind.EMBEDDING, (), 2)
    half = with_vectors(["a", "b"], [[1.0, 0.0], [0.0, 1.0]])
    int8 = with_vectors(["b", "a"], [[0.1, 1.0], [0.5, 1.0]])
    assert agreement.compare(half, int8, Heads.of(output)) == Agreement(2, 1, 2, 1)


def test_several_labels_agree_as_a_set() -> None:
    output = OutputSpec(OutputKind.MULTI_LABEL, written.NAMES, 3)
    half = rows_of(["a", "b"], ["yes", "no"], [(0.9, 0.6), (0.9, 0.6)])
    int8 = rows_of(["a", "b"], ["yes", "no"], [(0.8, 0.7), (0.8, 0.4)])
    assert agreement.compare(half, int8, Heads.of(output)) == Agreement(2, 1, 2, 1)


def test_a_release_without_int8_is_not_compared(tmp_path: Path, options: ScoringOptions) -> None:
    without = [variant for variant in small_release.VARIANTS if variant.precision != "int8"]
    files = {name: content for name, content in small_release.FILES.items() if not name.startswith("int8/")}
    release = small_release.seal(Store(tmp_path), files, variants=tuple(without))
    target = Target(str(tmp_path), DAY, "plan", 1)
    assert agreement.measure(None, rows_of(["a"], ["yes"]), release, options, target) is None  # type: ignore[arg-type]


def test_the_written_rows_are_compared_with_what_the_other_precision_says(
    spark: SparkSession,
    state: StateSettings,
    client: "redis.Redis",
    options: ScoringOptions,
    release: Release,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every text twice, of which a sample holds one; compared while nothing is committed."""
    write_day(state, [message(number, text) for number, text in enumerate([*TEXTS, *TEXTS])])
    run, tables = planned(state, client), Tables.for_input(state)
    fence = Fence.take(client, DAY, -1)
    found: dict[str, Agreement | None] = {}

    def look(files: Written) -> None:
        places = [(str(files.table / file.path), file.sha256) for file in files.files]
        all_of_it, few = (contents.read(places, most).sample for most in (agreement.SAMPLE, 50))
        # The labels of other rows: half precision would have said something else of nearly every text.
        turned = pa.concat_tables([all_of_it.slice(1), all_of_it.slice(0, 1)]).column("top_k")
        wrong = all_of_it.set_column(1, "top_k", turned)
        as_int8 = all_of_it.set_column(4, "precision", pa.array(["int8"] * all_of_it.num_rows))
        for name, sample in (("as int8", as_int8), ("all", all_of_it), ("few", few), ("wrong", wrong)):
            found[name] = agreement.measure(files.messages, sample, release, options, files.target)

    with open_attempt(spark, run, options, tables, fence, NightlySettings()) as attempt:
        look(attempt.write())
    said = capsys.readouterr().err
    assert f"gate: {len(TEXTS)} texts with INT8, to compare\n" in said
    assert f"gate: {len(TEXTS)} of {len(TEXTS)} texts (100%) in " in said
    whole, few, wrong, half = (found[name] for name in ("all", "few", "wrong", "as int8"))
    assert whole
    assert few
    assert wrong
    assert half
    assert (whole.texts, few.texts, wrong.texts) == (len(TEXTS), 50, len(TEXTS))
    assert whole.share > 0.9
    assert whole.clear_share > 0.97
    assert 0.5 < whole.clear / whole.texts < 1
    assert wrong.share < 0.5
    # Half precision against itself, in other company.
    assert half.share > 0.99

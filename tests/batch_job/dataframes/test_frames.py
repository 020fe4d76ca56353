"""A frame comes back as what it was, with its rows in their order and scores beside them; bad rows have reasons."""

import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import batch_job
from batch_job.dataframes import bar, libraries, scorer
from batch_job.dataframes.columns import SCORE_COLUMNS
from shared_model.batches import Batch, Running
from shared_model.encoding import InputSpec, collate, fine_bucket
from shared_model.engine import Engine
from shared_model.errors import BadInput, JobError
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from shared_model.types import MAX_TEXT_BYTES, Device, Precision
from tests.conftest import REPOSITORY
from tests.properties import examples
from tests.realtime_service.rollout import tiny_releases
from tests.realtime_service.rollout.tiny_releases import WORDS

TEXTS = ["where is my card", "slowly", "where is my card", "please"]
ROWS = {"n": [1, 2, 3, 4], "body": TEXTS}


def in_pandas(rows: dict[str, list[Any]]) -> Any:
    return pd.DataFrame(rows, index=[7, 7, 8, 9][: len(rows["n"])])


LIBRARIES: dict[str, tuple[Callable[..., Any], Callable[[Any], list[dict[str, Any]]]]] = {
    "pandas": (in_pandas, lambda frame: pa.Table.from_pandas(frame, preserve_index=False).to_pylist()),
    "polars": (pl.DataFrame, lambda frame: frame.to_dicts()),
    "table": (pa.table, lambda frame: frame.to_pylist()),
    "batch": (pa.record_batch, lambda frame: frame.to_pylist()),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_same_type_comes_out_with_the_scores_of_the_engine(name: str, tiny: Release) -> None:
    make, rows_of = LIBRARIES[name]
    frame = make(ROWS)
    scored = batch_job.scorer().score(frame, text="body")
    assert type(scored) is type(frame)
    rows = rows_of(scored)
    assert [*rows[0]] == ["n", "body", *SCORE_COLUMNS.names]
    assert [row["n"] for row in rows] == ROWS["n"]
    assert [row["label"] for row in rows] == [row["top_k"][0]["label"] for row in rows] == labels(tiny, TEXTS)
    assert {row["release"] for row in rows} == {tiny.id}
    assert [row["reason"] for row in rows] == [None] * 4
    assert rows[0]["score"] == rows[2]["score"] == pytest.approx(rows[0]["top_k"][0]["score"])
    moods = [dict(row["heads"])["mood"] for row in rows]
    assert [len(mood["top_k"]) for mood in moods] == [3] * 4
    assert {mood["abstained"] for mood in moods} <= {True, False}


#: Ids of each type that Arrow has and other libraries read.
IDS = pa.table(
    {
        "integer": pa.array([2**63, 1, None, 0], pa.uint64()),
        "float": pa.array([0.1, -0.0, None, 1e300]),
        "truth": pa.array([True, False, None, True]),
        "decimal": pa.array([Decimal("1.10"), Decimal("-0.01"), None, Decimal("12345678.90")], pa.decimal128(30, 2)),
        "date": pa.array([0, -1, None, 20_000], pa.date32()),
        "timestamp": pa.array([0, -1, None, 10**15], pa.timestamp("us", "Europe/Berlin")),
        "nanoseconds": pa.array([0, -1, None, 10**18 + 1], pa.timestamp("ns")),
        "time": pa.array([0, 1, None, 10**9], pa.time64("ns")),
        "binary": pa.array([b"\xff", b"", None, b"\x00"], pa.large_binary()),
        "uuid": pa.array([str(UUID(int=number)) for number in range(4)], pa.large_string()),
    }
)
IN_LIBRARIES: dict[str, tuple[Callable[[pa.Table], Any], Callable[[Any], pa.Table]]] = {
    "pandas": (lambda ids: ids.to_pandas(types_mapper=pd.ArrowDtype), pa.Table.from_pandas),
    "polars": (pl.from_arrow, lambda frame: frame.to_arrow(compat_level=pl.CompatLevel.oldest())),
    "table": (lambda ids: ids, lambda table: table),
    "batch": (lambda ids: ids.combine_chunks().to_batches()[0], lambda batch: pa.Table.from_batches([batch])),
}


@pytest.mark.parametrize("name", IN_LIBRARIES)
def test_ids_of_any_type_are_returned_with_it(name: str, tiny: Release) -> None:
    make, ids_of = IN_LIBRARIES[name]
    scored = ids_of(batch_job.scorer(text="text").score(make(IDS.append_column("text", pa.array(TEXTS)))))
    found = scored.select(IDS.column_names)
    assert found.replace_schema_metadata() == IDS
    assert found.schema.types == IDS.schema.types


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_frame_without_rows_gets_the_columns(name: str, tiny: Release) -> None:
    make, rows_of = LIBRARIES[name]
    frame = make(pa.table(ROWS)[:0].to_pydict())
    scored = batch_job.scorer(text="body").score(frame)
    assert type(scored) is type(frame)
    assert rows_of(scored) == []
    assert [*libraries.library(scored).names(scored)] == ["n", "body", *SCORE_COLUMNS.names]


def labels(release: Release, texts: list[str]) -> list[str]:
    """By the engine alone."""
    engine = release.engine(Precision.BF16, Device.CPU, 1)
    encodings = release.encoder().encode_many(texts)
    raw = np.concatenate([engine.score(collate([encoding], fine_bucket)) for encoding in encodings])
    engine.close()
    best = release.heads.split(release.heads.scores(raw))[0].argmax(axis=1)
    return [release.labels[place] for place in best]


def test_a_pandas_frame_keeps_its_index_and_its_columns(tiny: Release) -> None:
    frame = in_pandas(ROWS)
    scored = batch_job.scorer(text="body").score(frame)
    pd.testing.assert_frame_equal(scored[["n", "body"]], frame)
    assert scored["score"].dtype == np.float32


def test_rows_without_scores_have_a_reason_and_all_others_are_scored(tiny: Release) -> None:
    texts = ["card", None, 7, " \n", "x" * (MAX_TEXT_BYTES + 1), "\ud800", float("nan"), "please"]
    scored = batch_job.scorer().score(pd.DataFrame({"text": texts}))
    wrong = "wrong_type"
    assert [*scored["reason"]] == [None, wrong, wrong, "empty", "too_long", "bad_encoding", wrong, None]
    assert [*scored["label"].notna()] == [*scored["score"].notna()] == [reason is None for reason in scored["reason"]]
    assert {*scored["release"]} == {tiny.id}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_text_that_is_no_utf_8_has_a_reason_as_any_other_row(kind: pa.DataType, tiny: Release) -> None:
    """Spark reads files of another encoding so; Arrow checks no text."""
    raw = pa.array([b"card", b"caf\xe9", None, b"please"], pa.binary() if kind == pa.string() else pa.large_binary())
    batch = pa.record_batch({"id": [1, 2, 3, 4], "text": raw.view(kind)})
    expected = [None, "bad_encoding", "wrong_type", None]
    assert batch_job.scorer().score(batch)["reason"].to_pylist() == expected
    assert [it for scored in batch_job.scorer()(iter([batch])) for it in scored["reason"].to_pylist()] == expected


class Refusing:
    """An engine that fails on every batch with one of these tokens."""

    def __init__(self, engine: Engine, token: int) -> None:
        self._engine = engine
        self._token = token

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def start(self, batch: Batch) -> Running:
        if (batch.ids == self._token).any():
            raise RuntimeError("cannot be read")
        return self._engine.start(batch)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines fail on one word."""
    opened = Release.engine
    monkeypatch.setattr(Release, "engine", lambda *given: Refusing(opened(*given), WORDS.index("slowly")))


def test_a_text_that_no_engine_can_score_is_found_among_the_others(tiny: Release, refusing: None) -> None:
    scored = batch_job.scorer().score(pa.table({"text": [*TEXTS, None, "my slowly card"]}))
    assert scored["reason"].to_pylist() == [None, "poison", None, None, "wrong_type", "poison"]
    assert [label is None for label in scored["label"].to_pylist()] == [False, True, False, False, True, True]


def test_a_release_that_fails_on_too_many_texts_is_at_fault(tiny: Release, refusing: None) -> None:
    with pytest.raises(JobError, match="21 texts cannot be scored"):
        batch_job.scorer().score(pa.table({"text": [f"slowly {'card ' * number}" for number in range(21)]}))


def test_a_release_of_pairs_reads_two_columns(store: Store) -> None:
    release = tiny_releases.seal(store, "pairs", reads=InputSpec(max_tokens=64, pairs=True))
    pointer.promote(store, None, release.id)
    with pytest.raises(BadInput, match=f"pair: is not set, and release {release.id} reads pairs"):
        batch_job.scorer()
    frame = pa.table({"text": ["card", "card", "card"], "a": ["please", None, "slowly"], "b": ["slowly", "my", "is"]})
    scored = batch_job.scorer(pair="a").score(frame)
    assert scored["reason"].to_pylist() == [None, "wrong_type", None]
    assert batch_job.scorer(pair="a").score(frame, pair="b")["top_k"][0] == scored["top_k"][2]


def test_frames_that_do_not_fit_are_refused_in_one_line(tiny: Release) -> None:
    scoring = batch_job.scorer()
    with pytest.raises(
        BadInput, match=r"^frame: builtins.list is not one of pandas.DataFrame, polars.DataFrame, pyarrow"
    ):
        scoring.score(TEXTS)
    with pytest.raises(BadInput, match=r"^frame: has no column 'text', and has n, body; say which one by its name$"):
        scoring.score(pa.table(ROWS))
    with pytest.raises(BadInput, match=r"^frame: has no column '0', and has 0, 1; say which one by its name$"):
        scoring.score(pd.DataFrame([TEXTS[:2]]), text="0")
    with pytest.raises(BadInput, match=r"^frame: has 2 columns 'text'; rename or drop the others$"):
        scoring.score(pd.DataFrame([TEXTS[:2]], columns=["text", "text"]))
    with pytest.raises(BadInput, match=r"^frame: has 2 columns 'text'; rename or drop the others$"):
        next(scoring(iter([pa.RecordBatch.from_arrays([pa.array(TEXTS)] * 3, names=["id", "text", "text"])])))
    with pytest.raises(BadInput, match=r"^pair: is set, but release tiny-\w+ reads single texts$"):
        scoring.score(pa.table(ROWS), text="body", pair="n")
    with pytest.raises(BadInput, match=r"^frame: has a column score, as the scores have; rename or drop it$"):
        scoring.score(pa.table({"text": TEXTS, "score": [1, 2, 3, 4]}))


def test_a_model_is_opened_once_in_a_process(tiny: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, engine = list[str](), Release.engine
    monkeypatch.setattr(Release, "engine", lambda self, *given: opened.append(self.id) or engine(self, *given))
    scoring = batch_job.scorer()
    for _ in range(2):
        scoring.score(pa.table({"text": TEXTS}))
        batch = pa.record_batch({"id": [1, 2], "text": TEXTS[:2]})
        assert [len(it) for it in scoring(iter([batch, batch]))] == [2, 2]
    assert opened == [tiny.id]


def test_windows_are_scored_one_after_another_in_their_order(tiny: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pa.table({"text": TEXTS * 3})
    whole = batch_job.scorer().score(frame)
    monkeypatch.setattr(scorer, "WINDOW_ROWS", 5)
    assert batch_job.scorer().score(frame) == whole


def test_a_bar_is_shown_where_a_person_watches(
    tiny: Release, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pa.table({"text": TEXTS})
    batch_job.scorer().score(frame)
    assert capfd.readouterr().err == ""
    monkeypatch.setitem(sys.modules, "ipykernel", bar)
    batch_job.scorer().score(frame)
    assert "100%" in (shown := capfd.readouterr().err)
    assert "4/4" in shown
    batch_job.scorer().score(frame, progress=False)
    assert capfd.readouterr().err == ""


#: Words that the tokenizer knows and others, values that are no texts.
_VALUES = st.one_of(
    st.text(max_size=20),
    st.lists(st.sampled_from([*WORDS, "\ud800"]), max_size=5).map(" ".join),
    st.sampled_from([None, 3, b"card", 0.5]),
)


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(_VALUES, max_size=30))
def test_every_row_has_either_scores_or_a_reason_and_equal_texts_have_equal_scores(
    values: list[Any], tiny: Release
) -> None:
    scored = batch_job.scorer().score(pd.DataFrame({"text": pd.Series(values, dtype=object)}), progress=False)
    assert len(scored) == len(values)
    assert [*scored["label"].isna()] == [*scored["reason"].notna()]
    known: dict[str, float] = {}
    for value, score, reason in zip(values, scored["score"], scored["reason"], strict=True):
        if reason is None:
            assert known.setdefault(value, score) == score


_ALONE = """
import sys
for name in ("pyspark", "py4j", "grpc", "airflow", "torch"):
    sys.modules[name] = None
import pyarrow as pa
import batch_job
print(batch_job.scorer().score(pa.table({"text": ["card"]}))["label"])
"""


@pytest.mark.heavy
def test_no_spark_grpc_or_airflow_is_needed(tiny: Release) -> None:
    done = subprocess.run([sys.executable, "-c", _ALONE], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "label-0" in done.stdout

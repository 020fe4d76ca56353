"""The texts a release is made with: what is taken from files, what of it is refused, what is held out."""

import hashlib
import itertools
import json
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_model.encoding import InputSpec
from shared_model.errors import BadInput
from shared_model.evaluation import corpora, samples
from shared_model.evaluation.examples import Examples, read_examples
from shared_model.output import OutputKind, OutputSpec

LABELS = OutputSpec(OutputKind.SINGLE_LABEL, ("a", "b"), 2)
SETS = OutputSpec(OutputKind.MULTI_LABEL, ("a", "b"), 2)
VALUES = OutputSpec(OutputKind.REGRESSION, ("stars",), 1)
VECTOR = OutputSpec(OutputKind.EMBEDDING, (), 4)
SINGLE, PAIRS = InputSpec(64), InputSpec(64, pairs=True)


def sample(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def numbered(count: int, **more: str) -> list[Any]:
    return [{"text": f"message {number}", **more} for number in range(1, count + 1)]


@pytest.mark.parametrize("reads", [SINGLE, PAIRS], ids=["single", "pairs"])
def test_without_files_texts_are_generated_apart(reads: InputSpec) -> None:
    chosen = corpora.choose(LABELS, reads)
    assert (len(chosen.calibration), len(chosen.validation), len(chosen.gate.texts)) == (1000, 600, 1000)
    assert chosen.gate.source == corpora.GENERATED
    assert all(isinstance(text, tuple) == reads.pairs for text in chosen.calibration)
    streams = [list(part)[:600] for part in (chosen.calibration, chosen.validation, chosen.gate.texts)]
    assert all(len(set(a) & set(b)) < 0.2 * len(set(a)) for a, b in itertools.combinations(streams, 2))


def test_every_fifth_line_of_a_sample_is_held_out(tmp_path: Path) -> None:
    path = sample(tmp_path / "sample.jsonl", numbered(500))
    chosen = corpora.choose(LABELS, SINGLE, path)
    assert set(chosen.gate.texts) == {f"message {number}" for number in range(5, 501, 5)}
    assert set(chosen.validation) == {f"message {number}" for number in range(4, 501, 5)}
    assert len(chosen.calibration) == 300
    assert chosen.gate.source == corpora.HELD_OUT
    assert list(chosen.gate.shown) == [text.replace("message ", "sample.jsonl:") for text in chosen.gate.texts]
    everything = {*chosen.calibration, *chosen.validation, *chosen.gate.texts}
    assert len(everything) == 500


def test_what_is_held_out_and_generated_texts_are_the_reserve_of_labelled_ones(tmp_path: Path) -> None:
    evaluation = tmp_path / "eval.csv"
    evaluation.write_text("text,label\nhello,b\n")
    chosen = corpora.choose(LABELS, SINGLE, sample(tmp_path / "sample.jsonl", numbered(500)), evaluation)
    assert (len(chosen.calibration), len(chosen.validation)) == (300, 100)
    assert (chosen.gate.texts, chosen.gate.source) == (["hello"], corpora.LABELLED)
    assert chosen.gate.sha256 == hashlib.sha256(evaluation.read_bytes()).hexdigest()
    held_out, generated = chosen.gate.reserve
    assert (held_out.source, generated.source) == (corpora.HELD_OUT, corpora.GENERATED)
    assert set(held_out.texts) == {f"message {number}" for number in range(5, 501, 5)}
    assert all(name.startswith("sample.jsonl:") for name in held_out.shown)
    (only,) = corpora.choose(LABELS, SINGLE, None, evaluation).gate.reserve
    assert only == generated == corpora.generated_texts(SINGLE)


def forms(found: Sequence[Any]) -> set[Hashable]:
    return {samples.normalised(text) for text in found}


def test_no_evaluation_text_is_calibrated_on_however_it_is_written(tmp_path: Path) -> None:
    evaluation = tmp_path / "eval.csv"
    rows = [f"  MESSAGE\u3000{number} ,a\n" for number in range(1, 400)]
    evaluation.write_text("text,label\n" + "".join(rows))
    chosen = corpora.choose(LABELS, SINGLE, sample(tmp_path / "sample.jsonl", numbered(500) * 2), evaluation)
    barred = forms([*chosen.gate.texts, *(text for found in chosen.gate.reserve for text in found.texts)])
    assert len(barred) > 1000
    for part in (chosen.calibration, chosen.validation):
        assert forms(part).isdisjoint(barred)
    # Of 500 distinct lines 101 are left, and three fifths of them are calibrated on, before generated texts.
    assert (chosen.own, chosen.barred, len(chosen.calibration), len(chosen.validation)) == (61, 399, 300, 100)
    assert chosen.calibrated_on(300) == (
        "61 texts of sample.jsonl and 239 generated texts; 399 others are in the evaluation and left out"
    )
    assert chosen.calibrated_on(40).startswith("40 texts of sample.jsonl; 399 others")


@pytest.mark.parametrize("reads", [SINGLE, PAIRS], ids=["single", "pairs"])
def test_generated_texts_are_the_last_resort_and_apart_from_those_of_the_gate(reads: InputSpec) -> None:
    chosen = corpora.choose(LABELS, reads)
    gate = forms(chosen.gate.texts)
    assert forms(chosen.calibration).isdisjoint(gate)
    assert forms(chosen.validation).isdisjoint(gate)
    assert (chosen.own, chosen.calibrated_on(400)) == (0, "400 generated texts, the last resort")


def test_a_sample_that_the_evaluation_holds_is_replaced_by_generated_texts(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("text,label\n" + "".join(f"message {number},a\n" for number in range(500)))
    chosen = corpora.choose(LABELS, SINGLE, path, path)
    assert chosen.own == 0
    assert chosen.calibrated_on(1000).startswith("1,000 generated texts, the last resort; 500 others are in the eval")


def test_a_sample_may_be_small_where_it_says_so(tmp_path: Path) -> None:
    chosen = corpora.choose(LABELS, SINGLE, sample(tmp_path / "sample.jsonl", numbered(3)), least=1)
    assert (chosen.own, chosen.gate.source) == (3, corpora.GENERATED)
    assert set(chosen.calibration[:3]) == {"message 1", "message 2", "message 3"}
    assert (len(chosen.calibration), len(chosen.validation)) == (300, 100)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_normalising_twice_changes_nothing(text: str) -> None:
    once = samples.normalised(text)
    assert isinstance(once, str)
    assert samples.normalised(once) == once
    assert samples.normalised(f" {text}\n") == once


def test_of_a_large_sample_lines_from_all_over_are_taken(tmp_path: Path) -> None:
    path = sample(tmp_path / "sample.jsonl", numbered(20_000, text_pair="?"))
    chosen = corpora.choose(LABELS, PAIRS, path)
    assert (len(chosen.calibration), len(chosen.validation), len(chosen.gate.texts)) == (1000, 600, 1000)
    # A recipe that wants fewer takes the first.
    for part in (chosen.calibration[:400], chosen.validation, chosen.gate.texts):
        numbers = {int(text[0].split()[1]) for text in part}
        assert len(numbers) == len(part)
        assert min(numbers) < 200
        assert max(numbers) > 19_800
        assert 8_000 < np.mean(list(numbers)) < 12_000
    assert chosen == corpora.choose(LABELS, PAIRS, path)


@pytest.mark.parametrize(
    ("line", "reads", "wrong"),
    [
        ("not json", SINGLE, "is not JSON"),
        ("", SINGLE, "is not JSON"),
        ('["text"]', SINGLE, "needs text, each a text"),
        ('{"txt": "hello"}', SINGLE, "needs text, each a text"),
        ('{"text": 7}', SINGLE, "needs text, each a text"),
        ('{"text": " "}', SINGLE, "needs text, each a text"),
        ('{"text": "\\ud800"}', SINGLE, "needs text, each a text"),
        ('{"text": "hello"}', PAIRS, "needs text and text_pair, each a text"),
        ('{"text": "hello", "text_pair": "you"}', SINGLE, "has a text_pair, but this model reads single texts"),
    ],
)
def test_a_wrong_line_of_a_sample_is_named(tmp_path: Path, line: str, reads: InputSpec, wrong: str) -> None:
    more = {"text_pair": "?"} if reads.pairs else {}
    path = sample(tmp_path / "sample.jsonl", [*numbered(300, **more), line, *numbered(300, **more)])
    with pytest.raises(BadInput) as refused:
        corpora.choose(LABELS, reads, path)
    assert str(refused.value) == f"{path}:301: {wrong}"


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = sample(tmp_path / "sample.jsonl", numbered(600))
    path.write_bytes(path.read_bytes().replace(b'message 7"', b'message \xff"'))
    with pytest.raises(BadInput, match=r"sample\.jsonl:7: is not JSON"):
        corpora.choose(LABELS, SINGLE, path)


def test_a_small_sample_is_refused(tmp_path: Path) -> None:
    path = sample(tmp_path / "sample.jsonl", numbered(499))
    with pytest.raises(BadInput, match="has 499 lines, calibrating needs at least 500"):
        corpora.choose(LABELS, SINGLE, path)


@pytest.mark.parametrize(
    ("output", "reads", "contents", "truth"),
    [
        (LABELS, SINGLE, "text,label\nx,b\ny,a\n", [1, 0]),
        (LABELS, SINGLE, "sentence,category\nx,b\ny,a\n", [1, 0]),
        (LABELS, SINGLE, "label,id,text\nb,7,x\na,8,y\n", [1, 0]),
        (LABELS, PAIRS, "label,text_pair,text\nb,q,x\na,q,y\n", [1, 0]),
        (LABELS, PAIRS, "premise,hypothesis,gold\nx,q,b\ny,q,a\n", [1, 0]),
        (SETS, SINGLE, "text,label\nx,b|a\ny,\n", [[True, True], [False, False]]),
        (VALUES, SINGLE, "text,label\nx,2.5\ny,-1e3\n", [[2.5], [-1000]]),
    ],
)
def test_labels_are_read_as_the_models_output_has_them(
    tmp_path: Path, output: OutputSpec, reads: InputSpec, contents: str, truth: list[Any]
) -> None:
    path = tmp_path / "eval.csv"
    path.write_text(contents)
    gate = corpora.labelled_texts(path, output, reads)
    assert gate.texts == ([("x", "q"), ("y", "q")] if reads.pairs else ["x", "y"])
    assert gate.truth is not None
    assert gate.truth.dtype == np.array(truth).dtype
    assert gate.truth.tolist() == truth


@pytest.mark.parametrize(
    ("output", "reads", "contents", "wrong"),
    [
        (LABELS, SINGLE, b"text,label\nhello,a\n,b\n", ":3: needs a text and a label"),
        (LABELS, SINGLE, b"text,label\nhello\n", ":2: needs a text and a label"),
        (LABELS, SINGLE, b"text,label\nhello,  \n", ":2: needs a text and a label"),
        (LABELS, SINGLE, b'text,label\n"two\nlines",a\nhello\n', ":4: needs a text and a label"),
        (LABELS, SINGLE, b'text,label\n"never,a\n', ":2: unexpected end of data"),
        (LABELS, SINGLE, b"text,label\n\xff\xfe,a\n", ": is not UTF-8"),
        (LABELS, SINGLE, b"text,label\n", ": has no examples under its header line"),
        (LABELS, SINGLE, b"", ": has no examples under its header line"),
        (LABELS, SINGLE, b"text,label\nx,a\ny,weather\n", ":3: the model does not know the label 'weather'"),
        (
            LABELS,
            SINGLE,
            b"text,text_pair,label\nx,y,a\n",
            ": has a column text_pair, but this model reads single texts",
        ),
        (LABELS, PAIRS, b"text,label\nx,a\n", ":2: needs two texts and a label"),
        (SETS, SINGLE, b"text,label\nx,a|c\n", ":2: the model does not know the label 'c'"),
        (SETS, SINGLE, b"text,label\n,a\n", ":2: needs a text and a label"),
        (VALUES, SINGLE, b"text,label\nx,many\n", ":2: label 'many' is not a number"),
        (VALUES, SINGLE, b"text,label\nx,nan\n", ":2: label 'nan': needs 1 finite numbers, joined by |"),
        (VALUES, SINGLE, b"text,label\nx,1|2\n", ":2: label '1|2': needs 1 finite numbers, joined by |"),
        (VECTOR, SINGLE, b"text,label\nx,a\n", ":2: an embedding has no labels to be right about; leave --eval out"),
    ],
)
def test_a_wrong_line_of_examples_is_named(
    tmp_path: Path, output: OutputSpec, reads: InputSpec, contents: bytes, wrong: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(contents)
    with pytest.raises(BadInput) as refused:
        corpora.labelled_texts(path, output, reads)
    assert str(refused.value) == f"{path}{wrong}"


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip), min_size=1))
def test_texts_come_back_as_they_were_quoted(tmp_path_factory: pytest.TempPathFactory, found: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "quoted.csv"
    quoted = ['"' + text.replace('"', '""') + '",label' for text in found]
    path.write_bytes("\n".join(["text,label", *quoted]).encode())
    examples = read_examples(path)
    assert examples.texts == found
    assert examples.labels == ["label"] * len(found)


HEADERLESS = b"my card is lost,lost\nthanks,thanks\nI lost it,lost\nbye,thanks\n"


@pytest.mark.parametrize(
    ("contents", "texts_read", "columns"),
    [
        (HEADERLESS, 4, "no header line, its first line is an example; text from column 1, label from column 2"),
        (b"question,faq\nhello,faq\nbye,end\n", 3, "no header line, its first line is an example; text from column 1"),
        (b"utterance,intent\n" + HEADERLESS, 4, "text from column 'utterance', label from column 'intent'"),
        (b"id,Intent,Utterance\n1,a,x\n2,b,y\n", 2, "text from column 'Utterance', label from column 'Intent'"),
        (b"intent,phrases\na,x\nb,y\n", 2, "text from column 'phrases', label from column 'intent'"),
        (b"text,label\nlabel,label\n", 1, "text from column 'text', label from column 'label'"),
    ],
)
def test_a_header_is_told_from_an_example(tmp_path: Path, contents: bytes, texts_read: int, columns: str) -> None:
    (tmp_path / "data.csv").write_bytes(contents)
    found = read_examples(tmp_path / "data.csv")
    assert len(found.texts) == texts_read
    assert found.columns.startswith(columns)


@pytest.mark.parametrize(
    "contents", [b"lost my card,lost\nbye,thanks\n", b"a,b\nx,c\n", b"id,utterance,kind\n1,x,c\n2,y,d\n"]
)
def test_a_first_line_that_may_be_either_is_asked_about(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(contents)
    with pytest.raises(BadInput) as refused:
        read_examples(path)
    line = contents.decode().splitlines()[0]
    says = f"'{line}' may be a header or an example: name its columns text,label, or write the line text,label above it"
    assert str(refused.value) == f"{path}:1: {says}"


def test_a_sample_may_be_a_csv_of_examples(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("utterance,intent\n" + "".join(f"message {number},a\n" for number in range(1, 501)))
    chosen = corpora.choose(LABELS, SINGLE, path)
    assert (len(chosen.calibration), len(chosen.validation), len(chosen.gate.texts)) == (300, 100, 100)
    assert chosen.gate.source == corpora.HELD_OUT
    numbers = [int(str(text).split()[1]) for text in chosen.gate.texts]
    assert list(chosen.gate.shown) == [f"train.csv:{number + 1}" for number in numbers]
    path.write_text("utterance,intent\nhello,a\n")
    with pytest.raises(BadInput, match="has 1 lines, calibrating needs at least 500"):
        corpora.choose(LABELS, SINGLE, path)


def test_examples_carry_their_lines_and_the_hash_of_their_file(tmp_path: Path) -> None:
    contents = b'text,label\n"hello\nyou",a\nbye,b\n'
    path = tmp_path / "data.csv"
    path.write_bytes(contents)
    places, columns = [f"{path}:3", f"{path}:4"], "text from column 'text', label from column 'label'"
    expected = Examples(["hello\nyou", "bye"], ["a", "b"], places, hashlib.sha256(contents).hexdigest(), columns)
    assert read_examples(path) == expected

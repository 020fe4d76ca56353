"""The generator's own labels, and the heads of the default release that were trained on them."""

from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from shared_model import demo_labels
from shared_model.__main__ import main
from shared_model.building import build, checkpoint
from shared_model.commands.make_release import default_heads
from shared_model.encoding import Encoder, collate
from shared_model.engines.torch_engine import TorchEngine
from shared_model.evaluation.corpora import truth_of
from shared_model.evaluation.examples import Examples, read_examples
from shared_model.types import Device, Precision


def test_a_mood_is_that_of_the_phrases_before_typing_errors() -> None:
    assert demo_labels.moods("Please help, someone stole my card :(") == ["polite", "upset", "urgent"]
    assert demo_labels.moods("when does my card run out") == []
    counts = Counter(mood for _, cell in islice(demo_labels.mood_examples(5), 2_000) for mood in cell.split("|"))
    assert all(200 < counts[mood] < 1_200 for mood in ("polite", "upset", "urgent", ""))


def test_half_of_the_messages_are_on_other_topics_and_small_talk_is_in_no_scope() -> None:
    found = dict(islice(demo_labels.scope_examples(5), 2_000))
    assert 0.4 < Counter(found.values())["yes"] / len(found) < 0.6
    assert (found["thanks"], found["where is my card"]) == ("no", "yes")


def test_the_command_writes_examples_that_can_be_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["messages", "--labelled", str(tmp_path / "train"), "--count", "300", "--seed", "5"]) == 0
    mood, scope = (tmp_path / "train" / name for name in ("mood.csv", "in_scope.csv"))
    assert capsys.readouterr().out == f"written: {mood}, {scope}\n"
    for path, stream in ((mood, demo_labels.mood_examples(5)), (scope, demo_labels.scope_examples(5))):
        read = read_examples(path, unlabelled=True)
        assert dict(zip(read.texts, read.labels, strict=True)) == dict(islice(stream, 300))
        assert len(read.texts) == len(set(read.texts))


@pytest.mark.heavy
def test_the_heads_of_the_default_release_know_the_labels_of_messages_they_were_not_trained_on() -> None:
    source = checkpoint.with_heads(build.default_encoder(), default_heads())
    assert [(spec.name, spec.output.width) for spec in source.heads.specs] == [
        ("intent", 77),
        ("mood", 3),
        ("in_scope", 2),
    ]
    encoder = Encoder(source.files["tokenizer.json"], source.reads, release="")
    engine = TorchEngine(source.files, Precision.FP32, Device.CPU)
    streams = (demo_labels.mood_examples(23), demo_labels.scope_examples(23))
    for place, (stream, least) in enumerate(zip(streams, (0.75, 0.95), strict=True), start=1):
        texts, labels = map(list, zip(*islice(stream, 120), strict=True))
        raw = engine.score(collate(encoder.encode_many(texts)))
        spec, scores = source.heads.specs[place], source.heads.split(source.heads.scores(raw))[place]
        truth = truth_of(Examples(texts, labels, texts, "", ""), spec.output)
        right = (scores >= 0.5) == truth if truth.ndim == 2 else scores.argmax(axis=1) == truth
        assert np.mean(right.reshape(len(texts), -1).all(axis=1)) >= least
    engine.close()

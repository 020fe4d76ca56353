"""The demo's archive: seeded, of realistic lengths and repetition, with the damage a real one has."""

import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from shared_model import demo_messages
from shared_model.demo_messages import DAMAGED_LINES, FIRST_DAY
from shared_model.encoding import Encoder


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(itertools.islice(demo_messages.texts(seed=7), 10_000))


def test_a_seed_is_a_stream_and_another_seed_another(texts: list[str]) -> None:
    again = list(itertools.islice(demo_messages.texts(seed=7), 10_000))
    other = list(itertools.islice(demo_messages.texts(seed=8), 10_000))
    assert again == texts
    assert other != texts


@pytest.mark.heavy
def test_a_stream_is_the_same_in_every_process(texts: list[str]) -> None:
    code = "import itertools, json; from shared_model import demo_messages as d; "
    code += "print(json.dumps(list(itertools.islice(d.texts(7), 500))))"
    for hash_seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": hash_seed}
        output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout
        assert json.loads(output) == texts[:500]


def test_texts_are_what_the_service_accepts(texts: list[str]) -> None:
    assert all(text.strip() for text in texts)
    assert max(len(text.encode()) for text in texts) < 64 * 1024


def test_lengths_are_mostly_a_sentence_with_a_long_tail(texts: list[str], encoder: Encoder) -> None:
    tokens = sorted(encoding.tokens for encoding in encoder.encode_many(texts))
    median, p95 = tokens[len(tokens) // 2], tokens[len(tokens) * 95 // 100]
    assert 12 <= median <= 24
    assert 35 <= p95 <= 80
    assert tokens[0] <= 4
    assert tokens[-1] == encoder.reads.max_tokens  # some are truncated


def test_about_one_in_eight_repeats_another(texts: list[str]) -> None:
    repeats = 1 - len(set(texts)) / len(texts)
    assert 0.10 <= repeats <= 0.16
    assert Counter(texts).most_common(1)[0][0] == "thanks"


def lines(folder: Path, day: str) -> list[bytes]:
    contents = (folder / f"ds={day}" / "messages.jsonl").read_bytes()
    assert contents.endswith(b"\n")
    return contents[:-1].split(b"\n")


def test_an_archive_holds_every_message_and_each_kind_of_damage(tmp_path: Path, texts: list[str]) -> None:
    assert demo_messages.write_archive(tmp_path, 1001, days=2, seed=7) == [FIRST_DAY, FIRST_DAY.replace(day=15)]
    read = []
    for day in ("2026-01-14", "2026-01-15"):
        day_lines = lines(tmp_path, day)
        damaged = [line for line in day_lines if line in DAMAGED_LINES]
        assert sorted(damaged) == sorted(DAMAGED_LINES)
        read += [json.loads(line) for line in day_lines if line not in DAMAGED_LINES]
    assert [record["text"] for record in read] == texts[:1001]
    assert len({record["id"] for record in read}) == 1001
    assert all(record["ts"][:10].replace("-", "") == record["id"][:8] for record in read)
    assert [record["ts"] for record in read] == sorted(record["ts"] for record in read)


def test_a_clean_archive_has_no_damage(tmp_path: Path) -> None:
    demo_messages.write_archive(tmp_path, 50, days=1, damaged=False)
    assert len([json.loads(line) for line in lines(tmp_path, "2026-01-14")]) == 50


def test_an_archive_is_the_same_bytes_again(tmp_path: Path) -> None:
    for name in ("one", "two"):
        demo_messages.write_archive(tmp_path / name, 300)
    for day in ("2026-01-14", "2026-01-15"):
        assert lines(tmp_path / "one", day) == lines(tmp_path / "two", day)


def test_a_day_that_is_there_is_left_alone(tmp_path: Path) -> None:
    demo_messages.write_archive(tmp_path, 20, days=1)
    before = lines(tmp_path, "2026-01-14")
    demo_messages.write_archive(tmp_path, 400, days=2)
    assert lines(tmp_path, "2026-01-14") == before
    assert len(lines(tmp_path, "2026-01-15")) == 200 + len(DAMAGED_LINES)


def test_more_days_than_messages_is_an_archive_too(tmp_path: Path) -> None:
    assert len(demo_messages.write_archive(tmp_path, 1, days=3)) == 3
    assert lines(tmp_path, "2026-01-16").count(b"") >= 1

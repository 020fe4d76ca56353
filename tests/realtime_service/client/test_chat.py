"""`python -m realtime_service chat`, as a person and a pipe meet it."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from realtime_service.cli import chat, printing
from realtime_service.client import Answer
from shared_model.types import HeadScore, Label, Score, ServingPath
from tests.realtime_service.conftest import RunningService, eventually

LINE = re.compile(
    r"  (?P<label>\w+) (?P<share>[\d.]+)%(?:; \w+: [\w ,.%]+)*  \((?P<path>\w+) path, (?P<milliseconds>[\d.]+) ms\)"
)


def command(address: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "realtime_service", "chat", "--address", address, *options]


def piped(address: str, typed: bytes, *options: str) -> "subprocess.CompletedProcess[str]":
    ended = subprocess.run(command(address, *options), input=typed, capture_output=True, timeout=60, check=False)
    return subprocess.CompletedProcess(ended.args, ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def test_each_line_shows_intent_probability_path_and_milliseconds(service: RunningService) -> None:
    ended = piped(service.address, b"my card has not arrived\n\n   \nI want to close my account\n")
    assert (ended.returncode, ended.stderr) == (0, "")
    first, second = (LINE.fullmatch(line) for line in ended.stdout.splitlines())
    assert first
    assert second
    assert (first["label"], second["label"]) == ("card_arrival", "terminate_account")
    assert first["path"] == "latency"
    assert 1 < float(first["share"]) <= 100
    assert 0 < float(first["milliseconds"]) < 30_000


def test_one_text_can_be_scored_without_a_chat(service: RunningService) -> None:
    command = [
        sys.executable,
        "-m",
        "realtime_service",
        "call",
        "my card has not arrived",
        "--address",
        service.address,
    ]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.startswith("card_arrival ")
    assert "  dynamic path (neither urgent nor bulk), int8, batch 1, minilm-banking77-" in said


def test_what_fails_is_one_line_and_the_chat_goes_on(service: RunningService) -> None:
    ended = piped(service.address, b"x" * 70_000 + b"\n\xff\xfe\nmy card has not arrived")
    too_long, no_text, last = ended.stdout.splitlines()
    assert too_long.startswith("  INVALID_ARGUMENT: texts[0]: ")
    assert LINE.fullmatch(no_text)
    assert LINE.fullmatch(last)
    assert (ended.returncode, ended.stderr) == (0, "")
    ended = piped(service.address, b"too little time\n", "--timeout-ms", "1")
    assert re.match(r"  (RESOURCE_EXHAUSTED|DEADLINE_EXCEEDED): ", ended.stdout)
    assert ended.returncode == 0


@pytest.mark.heavy
@pytest.mark.parametrize("typed", [b"", b"hello\n"])
def test_without_a_service_it_ends_with_one_line(typed: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    ended = piped(address, typed)
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("realtime_service chat: UNAVAILABLE: ")
    ended = piped("nowhere", typed)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("realtime_service chat: addresses: 'nowhere': expected HOST:PORT")


@pytest.mark.parametrize("leave", ["quit", "EXIT", "/quit"])
def test_a_word_leaves_and_another_helps(service: RunningService, leave: str) -> None:
    ended = piped(service.address, f"help\n/help\n {leave} \nmy card has not arrived\n".encode())
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, 2 * f"{chat.HELP}\n", "")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Background jobs of a shell ignore Ctrl-C, and so do all that they start: a person's chat does not."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.parametrize("leave", ["ctrl-c", "ctrl-d"])
def test_a_person_is_prompted_and_may_leave(service: RunningService, interruptible: None, leave: str) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command(service.address), stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        seen = until(ours, b"you> ")
        assert seen.decode().splitlines()[0] == chat.GREETING
        os.write(ours, b"my card has not arrived\n")
        seen = until(ours, b"you> ")
        assert b"card_arrival" in seen
        if leave == "ctrl-c":
            # Between the prompt and the wait for a key, Python would only notice with the next key.
            eventually(lambda: reads_keys(process.pid))
            process.send_signal(signal.SIGINT)
        else:
            os.write(ours, b"\x04")
        assert process.wait(timeout=20) == 0
        left = rest(ours)
        assert b"Traceback" not in left
        assert left.endswith(b"\n")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def reads_keys(pid: int) -> bool:
    """Whether a process is in read(0, …), which has another number on each architecture."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[:2] in (["0", "0x0"], ["63", "0x0"])


def until(terminal: int, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        seen += os.read(terminal, 1024)
    return seen


def rest(terminal: int) -> bytes:
    """What is left of a terminal whose other end is closed."""
    seen = b""
    while True:
        try:
            seen += os.read(terminal, 1024)
        except OSError:
            return seen


@pytest.mark.parametrize(
    ("output", "score", "says"),
    [
        ("single_label", Score((Label("card", 0.875), Label("loan", 0.1)), 3, False), "card 87.5%"),
        ("multi_label", Score((Label("rude", 0.9), Label("spam", 0.2)), 3, False), "rude 90.0%, spam 20.0%"),
        ("regression", Score((Label("stars", 4.25),), 3, False), "stars 4.250"),
        ("embedding", Score((), 3, False, (0.5, 0.25)), "embedding of 2 numbers"),
    ],
)
def test_every_kind_of_release_can_be_talked_to(output: str, score: Score, says: str) -> None:
    answer = Answer((score,), ServingPath.LATENCY, "", "", "", 1, 0, 0, None, "", None)  # type: ignore[arg-type]
    assert chat.understood(answer, {chat.FIRST: output}) == says


def test_every_head_is_shown_by_its_name() -> None:
    mood = HeadScore((Label("rude", 0.9), Label("spam", 0.2)))
    score = Score((Label("card", 0.875),), 3, False, (), {"mood": mood, "stars": HeadScore((Label("stars", 4.25),))})
    answer = Answer((score,), ServingPath.LATENCY, "", "", "", 1, 0, 0, None, "", None)  # type: ignore[arg-type]
    outputs = {chat.FIRST: "single_label", "mood": "multi_label", "stars": "regression"}
    assert chat.understood(answer, outputs) == "card 87.5%; mood: rude 90.0%, spam 20.0%; stars: stars 4.250"
    assert printing.answer(answer, 0.001).splitlines()[:4] == [
        f"{'card':<44}{0.875:8.3f}",
        "mood:",
        f"  {'rude':<44}{0.9:8.3f}",
        f"  {'spam':<44}{0.2:8.3f}",
    ]

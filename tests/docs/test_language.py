"""Phrases that must not return to documents, comments, docstrings and strings. CONTRIBUTING.md says how to write."""

import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.heavy

REPOSITORY = Path(__file__).parents[2]

BANNED = {
    # Not a question.
    "what-who": re.compile(r"(?:^\W*|[.:;] |\*\*)(?:What|Who|Whoever) [a-z](?![^.]*\?)"),
    "nobody": re.compile(r"\b(?:nobody|whoever)\b", re.IGNORECASE),
    "none": re.compile(r"\b(?:(?:is|are|as) none|is no number)\b", re.IGNORECASE),
    "told": re.compile(r"\b(?:(?:is|are|was|be) told|(?:says?|told) of (?:itself|themselves))\b", re.IGNORECASE),
    "idiom": re.compile(
        r"\b(?:blamed|the door|stands there|lonely|(?:its|for|in any) company|hopeless|forgiven|snug)\b", re.IGNORECASE
    ),
    "vocabulary": re.compile(r"\b(?:left alone|set aside|taken over|leftovers?)\b", re.IGNORECASE),
}

#: Lines of each kind that are left from before the rule, by area; documents have none. To be lowered, never raised.
REMAINING = {
    "packages": {"what-who": 12, "nobody": 1, "none": 1, "told": 2, "vocabulary": 4},
    "tests and tools": {"what-who": 39, "nobody": 10, "none": 2, "told": 3, "idiom": 5, "vocabulary": 3},
}

_PACKAGES = {"shared_model", "batch_job", "realtime_service", "dags", "protos"}
#: How a comment begins, by the suffix or the name of a file.
_COMMENT = {".lua": "--", ".proto": "//", ".yml": "#", ".toml": "#", ".sh": "#", "Makefile": "#", "Dockerfile": "#"}


class Line(NamedTuple):
    path: Path
    number: int
    text: str


def area_of(path: Path) -> str:
    if path.suffix == ".md":
        return "documents"
    return "packages" if path.parts[0] in _PACKAGES else "tests and tools"


def tracked() -> Iterator[Path]:
    """Files of the tree, without this one, the changelog, which is history, and generated modules."""
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    left_out = re.compile(
        rf"{re.escape(str(Path(__file__).relative_to(REPOSITORY)))}|CHANGELOG\.md|.*_pb2(_grpc)?\.pyi?"
    )
    return (Path(name) for name in listed.splitlines() if not left_out.fullmatch(name))


def prose(path: Path) -> Iterator[Line]:
    """Lines that people read."""
    if not (REPOSITORY / path).is_file():
        return
    if path.suffix == ".py":
        with tokenize.open(REPOSITORY / path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type in (tokenize.COMMENT, tokenize.STRING):
                    for number, text in enumerate(token.string.splitlines(), token.start[0]):
                        yield Line(path, number, text.strip())
        return
    mark = "" if path.suffix == ".md" else _COMMENT.get(path.suffix or path.name)
    if mark is not None:
        for number, text in enumerate((REPOSITORY / path).read_text().splitlines(), 1):
            yield Line(path, number, text[text.find(mark) :] if mark in text else "")


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return [line for path in tracked() for line in prose(path)]


@pytest.mark.parametrize("area", ["documents", *REMAINING])
@pytest.mark.parametrize("kind", BANNED)
def test_a_banned_phrase_does_not_return(kind: str, area: str, lines: list[Line]) -> None:
    allowed = REMAINING.get(area, {}).get(kind, 0)
    found = [it for it in lines if area_of(it.path) == area and BANNED[kind].search(it.text)]
    if len(found) > allowed:
        shown = [f"{it.path}:{it.number}: {it.text[:100]}" for it in found]
        pytest.fail("\n".join([f"{len(found)} lines of kind {kind!r}, {allowed} are allowed:", *shown]), pytrace=False)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("what-who", "What is late waits."),
        ("what-who", "# Who asks again gets it"),
        ("what-who", "It ends: What was read counts."),
        ("nobody", '"""Nobody reads it."""'),
        ("none", "its value is none"),
        ("told", "the caller is told"),
        ("idiom", "held for company"),
        ("vocabulary", "a line is set aside"),
    ],
)
def test_control_a_banned_phrase_is_found(kind: str, text: str) -> None:
    assert [name for name, pattern in BANNED.items() if pattern.search(text)] == [kind]


@pytest.mark.parametrize("text", ["What is this?", "Where is it", "a whole number", "returns None", "next-door"])
def test_other_texts_pass(text: str) -> None:
    assert not any(pattern.search(text) for pattern in BANNED.values())

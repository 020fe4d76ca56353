"""Which parts of protobuf read what callers send."""

import ast
from pathlib import Path

import pytest
from google.protobuf.internal import api_implementation

REPOSITORY = Path(__file__).parents[3]
#: They read nested JSON, and messages of any type that a caller names.
BANNED = {"google.protobuf.json_format", "google.protobuf.any_pb2", "google.protobuf.text_format"}


def imported(source: str) -> set[str]:
    """The modules that a source names in imports."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found |= {name.name for name in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module, *(f"{module}.{name.name}" for name in names)}
    return found


def test_messages_are_parsed_by_the_compiled_parser() -> None:
    """The one in Python takes a hundred times as long and follows nested messages without a bound."""
    assert api_implementation.Type() == "upb"


def test_the_service_reads_no_json_and_no_message_of_a_callers_type() -> None:
    """The command line only writes such text."""
    service = REPOSITORY / "realtime_service"
    sources = [path for path in service.rglob("*.py") if path.parent != service / "cli"]
    assert len(sources) > 50
    assert [str(path) for path in sources if imported(path.read_text()) & BANNED] == []


@pytest.mark.parametrize("source", ["from google.protobuf import json_format", "import google.protobuf.any_pb2"])
def test_the_search_finds_them(source: str) -> None:
    assert imported(source) & BANNED

"""Refusals in the log: a line for each reason and second, and JSON that names request, trace and caller."""

import io
import json
import logging
import sys
from collections.abc import Iterator

import grpc
import pytest

from realtime_service.errors import Overloaded, Status, status_of
from realtime_service.telemetry import json_logs, refusals
from realtime_service.telemetry.refusals import MOST_REASONS, RefusalLog
from realtime_service.telemetry.scope import SCOPE, Scope, name_request
from shared_model.clock import SimulatedClock
from shared_model.errors import BadInput


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The log of refusals, as JSON."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(json_logs.JsonFormatter())
    refusals.log.addHandler(handler)
    before = refusals.log.level
    refusals.log.setLevel(logging.INFO)
    yield written
    refusals.log.removeHandler(handler)
    refusals.log.setLevel(before)


def read(lines: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def late(retry_after: float) -> Status:
    return status_of(Overloaded("the answer would come too late", retry_after))


def test_each_reason_has_a_line_a_second_with_the_number_of_those_like_it(lines: io.StringIO) -> None:
    clock = SimulatedClock()
    told = RefusalLog(clock)
    for number in range(10):
        told.note(late(number / 100), "ipv4:127.0.0.1")
        # Numbers differ from one to the next, and make no other reason.
        told.note(status_of(Overloaded(f"requests under way hold {number} bytes", 0.1)), "other")
    clock.advance(1.0)
    told.note(late(0.5), "third")
    found = [(line["reason"], line["caller"], line["more"]) for line in read(lines)]
    assert found == [
        ("the answer would come too late", "ipv4:127.0.0.1", 0),
        ("requests under way hold 0 bytes", "other", 0),
        ("the answer would come too late", "third", 9),
    ]
    assert read(lines)[2]["message"] == "refused: the answer would come too late (caller third); 9 more like it before"


def test_a_reason_that_pauses_tells_later_how_many_were_like_it(lines: io.StringIO) -> None:
    clock = SimulatedClock()
    told = RefusalLog(clock)
    for _ in range(5):
        told.note(late(0.1), "first")
    for _ in range(3):
        clock.advance(1.0)
        told.note(status_of(Overloaded("requests under way hold 5 bytes", 0.1)), "other")
    told.note(late(0.1), "first")
    clock.advance(1.0)
    told.note(late(0.1), "first")
    assert [line["more"] for line in read(lines) if line["caller"] == "first"] == [0, 4, 0]


def test_made_up_reasons_do_not_hide_how_many_a_true_one_has(lines: io.StringIO) -> None:
    clock = SimulatedClock()
    told = RefusalLog(clock)
    for number in range(2 * MOST_REASONS):
        clock.advance(1.0)
        for _ in range(2):
            told.note(Status(grpc.StatusCode.PERMISSION_DENIED, f"no {chr(0x4E00 + number)}"))
    for _ in range(2):
        clock.advance(1.0)
        for _ in range(5):
            told.note(late(0.1), "true")
    assert [line["more"] for line in read(lines) if line.get("caller") == "true"] == [0, 4]


def test_callers_cannot_make_more_lines_than_a_few_reasons(lines: io.StringIO) -> None:
    told = RefusalLog(SimulatedClock())
    for number in range(1000):
        told.note(Status(grpc.StatusCode.PERMISSION_DENIED, f"no {chr(0x4E00 + number)}"))
    assert len(read(lines)) == MOST_REASONS


def test_errors_of_callers_and_answers_are_no_refusals(lines: io.StringIO) -> None:
    told = RefusalLog(SimulatedClock())
    told.note(status_of(BadInput("texts", "holds 0 texts")))
    told.note(Status(grpc.StatusCode.OK, ""))
    assert not read(lines)


def test_a_line_names_the_request_and_forges_none(lines: io.StringIO) -> None:
    forged = 'r-1"}\n{"level": "ERROR'
    token = SCOPE.set(Scope("claimed:me"))
    try:
        name_request(forged)
        RefusalLog(SimulatedClock()).note(Status(grpc.StatusCode.UNAVAILABLE, "a\nb"))
    finally:
        SCOPE.reset(token)
    [line] = read(lines)
    assert (line["caller"], line["request_id"], line["level"]) == ("claimed:me", forged, "INFO")
    assert line["message"] == 'refused: ab (request_id r-1"}{"level": "ERROR, caller claimed:me)'


def test_an_exception_is_in_its_line() -> None:
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError:
        record = logging.LogRecord("a", logging.ERROR, __file__, 1, "it %s", ("failed",), sys.exc_info())
    read = json.loads(json_logs.JsonFormatter().format(record))
    assert (read["message"], read["logger"], read["level"]) == ("it failed", "a", "ERROR")
    assert read["exception"].endswith("ZeroDivisionError: by zero")
    assert read["time"].endswith("+00:00")

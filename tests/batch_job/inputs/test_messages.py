"""Every line is a message or quarantined with a reason; none is lost, none is both."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batch_job.inputs.messages import Message, Reason, Unreadable, read_line
from shared_model.demo_messages import DAMAGED_LINES
from shared_model.types import MAX_TEXT_BYTES

_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.just("text"), inner),
    max_leaves=5,
)


def reason_of(line: bytes) -> Reason | None:
    try:
        read_line(line)
    except Unreadable as unreadable:
        return unreadable.reason
    return None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", Reason.EMPTY),
        (b" \t\r", Reason.EMPTY),
        (b'{"id": "a", "text": ""}', Reason.EMPTY),
        (b'{"id": "a", "text": " \\n\\u00a0"}', Reason.EMPTY),
        (b'{"id": "a", "te', Reason.BAD_JSON),
        (b"no json", Reason.BAD_JSON),
        (b"[" * 100_000, Reason.BAD_JSON),
        (b"1" * 5_000, Reason.WRONG_TYPE),
        (b"17", Reason.WRONG_TYPE),
        (b'["a", "b"]', Reason.WRONG_TYPE),
        (b'{"text": "no id"}', Reason.WRONG_TYPE),
        (b'{"id": "", "text": "no id"}', Reason.WRONG_TYPE),
        (b'{"id": "a", "text": 7}', Reason.WRONG_TYPE),
        (b'{"id": "a", "text": true}', Reason.WRONG_TYPE),
        (b'{"id": [7], "text": "a list"}', Reason.WRONG_TYPE),
        (b'{"id": {"a": 7}, "text": "an object"}', Reason.WRONG_TYPE),
        (b'{"id": null, "text": "null"}', Reason.WRONG_TYPE),
        (b'{"id": NaN, "text": "no number"}', Reason.WRONG_TYPE),
        (b'{"id": "a", "text": null}', Reason.WRONG_TYPE),
        (b'{"id": "a", "text": "\xff\xfe"}', Reason.BAD_ENCODING),
        (b'{"id": "a", "text": "half a pair: \\ud83d"}', Reason.BAD_ENCODING),
        (b'{"id": "\\ud83d", "text": "x"}', Reason.BAD_ENCODING),
        (json.dumps({"id": "a", "text": "x" * (MAX_TEXT_BYTES + 1)}).encode(), Reason.TOO_LONG),
        (json.dumps({"id": "a", "text": "ä" * (MAX_TEXT_BYTES // 2 + 1)}).encode(), Reason.TOO_LONG),
    ],
)
def test_a_line_that_is_no_message_has_its_reason(line: bytes, reason: Reason) -> None:
    assert reason_of(line) is reason


@pytest.mark.parametrize(
    "line",
    [
        b'{"id": "a", "text": "hello"}',
        b'{"text": "hello", "id": "a", "ts": "2026-01-14T00:00:00Z", "more": [1]}\r',
        b'\xef\xbb\xbf{"id": "a", "text": "hello"}',
    ],
)
def test_a_message_is_read(line: bytes) -> None:
    assert read_line(line) == Message("a", "hello")


@pytest.mark.parametrize(
    "spelled",
    ["7", "-0", "9007199254740993", "1" * 5_000, "1.50", "1E400", "0.1000000000000000055511", "true", "false"],
)
def test_an_id_that_is_a_number_is_read_as_it_is_spelled(spelled: str) -> None:
    assert read_line(f'{{"id": {spelled}, "text": "hello"}}'.encode()) == Message(spelled, "hello")


def test_the_longest_text_is_a_message() -> None:
    text = "x" * MAX_TEXT_BYTES
    assert read_line(json.dumps({"id": "a", "text": text}).encode()).text == text


def test_every_damaged_line_of_the_demo_is_set_aside() -> None:
    assert all(reason_of(line) for line in DAMAGED_LINES)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_have_a_reason(line: bytes) -> None:
    reason_of(line)


@given(_JSON)
def test_any_json_is_a_message_or_has_a_reason(value: object) -> None:
    reason_of(json.dumps(value).encode())


@given(st.text(min_size=1), st.text())
def test_a_message_comes_back_as_it_was_written(message_id: str, text: str) -> None:
    line = json.dumps({"id": message_id, "text": text}).encode()
    if text.strip():
        assert read_line(line) == Message(message_id, text)
    else:
        assert reason_of(line) is Reason.EMPTY

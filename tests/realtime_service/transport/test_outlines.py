"""Which requests are looked at before they are parsed."""

from types import SimpleNamespace
from typing import Any

import pytest

from realtime_service.transport.messages import MAX_MESSAGE_BYTES, SMALL_BYTES
from realtime_service.transport.outlines import Outline, check_quota


def asked(size: int, charged: int = 3, forwarded: bool = False, quotas_apply: bool = True) -> list[tuple[str, int]]:
    """Models and texts that are asked about for a request of so many bytes."""
    found = list[tuple[str, int]]()

    def check(caller: str, model: str, texts: int) -> None:
        assert caller == "alice"
        found.append((model, texts))

    shedding: Any = SimpleNamespace(check_quota=check, quotas_apply=quotas_apply)
    call: Any = SimpleNamespace(caller="alice", forwarded=forwarded)
    check_quota(shedding, call, bytes(size), lambda raw: Outline("m", charged))
    return found


@pytest.mark.parametrize("size", [SMALL_BYTES + 1, MAX_MESSAGE_BYTES])
def test_a_large_request_is_looked_at(size: int) -> None:
    assert asked(size) == [("m", 3)]


@pytest.mark.parametrize("size", [SMALL_BYTES, MAX_MESSAGE_BYTES + 1])
def test_a_small_request_is_parsed_and_one_that_is_too_large_refused_as_such(size: int) -> None:
    assert asked(size) == []


def test_no_look_is_made_in_vain() -> None:
    assert asked(SMALL_BYTES + 1, quotas_apply=False) == []
    assert asked(SMALL_BYTES + 1, forwarded=True) == []


def test_a_request_without_texts_counts_as_one() -> None:
    assert asked(SMALL_BYTES + 1, charged=0) == [("m", 1)]

"""How failures reach a caller."""

import copy

import grpc
import pytest

from realtime_service.client import errors
from realtime_service.client.errors import KINDS, CallError, InvalidRequest, NotFound, Overloaded, error_of
from realtime_service.rpc.retryable import retry_after


def test_every_status_has_its_error() -> None:
    assert set(KINDS) == set(grpc.StatusCode) - {grpc.StatusCode.OK}
    drawn = errors.__doc__ or ""
    assert all(kind.__name__ in drawn for kind in set(KINDS.values()))


def test_an_error_is_what_grpc_raises_and_one_line() -> None:
    error = error_of(grpc.StatusCode.NOT_FOUND, "request_id: 'x' was not submitted")
    assert isinstance(error, grpc.RpcError)
    assert isinstance(error, NotFound)
    assert isinstance(error, InvalidRequest)
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "request_id: 'x' was not submitted")
    assert str(error) == "NOT_FOUND: request_id: 'x' was not submitted"


@pytest.mark.parametrize("kind", sorted(set(KINDS.values()), key=str), ids=lambda kind: kind.__name__)
def test_an_error_survives_the_way_to_another_process(kind: type[CallError]) -> None:
    error = kind(grpc.StatusCode.UNKNOWN, "why", (("retry-after-ms", "7"),))
    again = copy.copy(error)
    assert (type(again), str(again), again.trailing_metadata()) == (kind, str(error), error.trailing_metadata())


@pytest.mark.parametrize(
    ("hint", "seconds"),
    [("250", 0.25), ("0", 0.0), ("", None), ("soon", None), ("-5", None), ("²", None), (b"9", None)],
)
def test_a_hint_is_read_or_left_alone(hint: str | bytes, seconds: float | None) -> None:
    assert retry_after((("retry-after-ms", hint),)) == seconds
    refused = error_of(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", (("other", "1"), ("retry-after-ms", hint)))
    assert isinstance(refused, Overloaded)
    assert refused.retry_after == seconds

"""The status table covers every error a handler can raise, and tells nothing about those it does not know."""

import grpc

from realtime_service import errors
from shared_model import errors as shared_errors
from shared_model.errors import TandemError

#: Errors of building and loading releases, of settings and of the nightly run: no handler raises them.
NOT_FOR_CALLERS = {
    shared_errors.SettingError,
    shared_errors.ReleaseError,
    errors.UnfitRelease,
    shared_errors.Stale,
    shared_errors.JobError,
}


def test_every_error_has_a_status_or_never_reaches_a_caller() -> None:
    known = {
        kind
        for module in (errors, shared_errors)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, TandemError) and kind is not TandemError
    }
    assert known == set(errors.STATUS) | NOT_FOR_CALLERS


def test_an_unforeseen_error_says_nothing_of_itself() -> None:
    code, message, trailers = errors.status_of(RuntimeError("secret-path /etc/shadow"))
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in message
    assert trailers == ()


def test_a_refusal_carries_its_retry_hint() -> None:
    code, message, trailers = errors.status_of(errors.Overloaded("too much", 0.0421))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "retry in 42 ms" in message
    assert trailers == (("retry-after-ms", "42"),)

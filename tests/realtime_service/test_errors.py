"""The status table covers every error a handler can raise, and tells nothing about those it does not know."""

import importlib
import pkgutil

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

import realtime_service
from realtime_service import errors
from shared_model import errors as shared_errors
from shared_model.errors import TandemError

#: Errors of building and loading releases, of settings and of the nightly run: no handler raises them. A device that
#: has no memory for a batch fails its callers as any engine does.
NOT_FOR_CALLERS = {
    shared_errors.SettingError,
    shared_errors.ReleaseError,
    errors.UnfitRelease,
    shared_errors.Stale,
    shared_errors.JobError,
    shared_errors.WorkersLost,
    shared_errors.NoInput,
    shared_errors.Refused,
    shared_errors.OutOfMemory,
    shared_errors.EngineLost,
    shared_errors.Untrusted,
}


def subclasses(kind: type[TandemError]) -> set[type[TandemError]]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def test_every_error_has_a_status_or_never_reaches_a_caller() -> None:
    for module in pkgutil.walk_packages(realtime_service.__path__, "realtime_service."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    # Of the modules that the service can load: other tests' packages have errors of their own.
    ours = {
        kind for kind in subclasses(TandemError) if kind.__module__.startswith(("realtime_service", "shared_model"))
    }
    assert ours - {TandemError} == set(errors.STATUS) | NOT_FOR_CALLERS | {errors.Relayed}


def test_an_unforeseen_error_says_nothing_of_itself() -> None:
    told = errors.status_of(RuntimeError("secret-path /etc/shadow"))
    assert told.code is grpc.StatusCode.INTERNAL
    assert "secret" not in told.message
    assert told.trailers() == ()


def test_an_error_that_quotes_a_library_does_not_quote_it_to_a_caller() -> None:
    told = errors.status_of(shared_errors.StoreUnavailable("Redis did not answer: connecting to secret.host:6379"))
    assert told.code is grpc.StatusCode.UNAVAILABLE
    assert "secret" not in told.message


@pytest.mark.parametrize(
    ("error", "milliseconds"),
    [
        (errors.Overloaded("too much", 0.0421), 42),
        (errors.Overloaded("too much", 0.0001), 1),
        (shared_errors.QueueFull("the stream is full"), 5000),
    ],
)
def test_a_refusal_carries_its_retry_hint_for_everybody(error: TandemError, milliseconds: int) -> None:
    told = errors.status_of(error)
    assert told.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert told.retry_after_ms == milliseconds
    trailers = dict(told.trailers())
    assert trailers["retry-after-ms"] == trailers["grpc-retry-pushback-ms"] == str(milliseconds)
    # gRPC waits for no retry that would come after the deadline; people are told all the same.
    late = dict(told.trailers(left=0.0001))
    assert (late["retry-after-ms"], late["grpc-retry-pushback-ms"]) == (str(milliseconds), "-1")
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert (status.code, status.message) == (grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], told.message)
    hint = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(hint)
    assert hint.retry_delay.ToMilliseconds() == milliseconds


def test_what_no_retry_can_help_carries_no_hint() -> None:
    told = errors.status_of(shared_errors.BadInput("texts", "is empty"))
    assert (told.retry_after_ms, told.trailers()) == (0, ())
    told = errors.status_of(errors.MessageTooLarge("send fewer texts"))
    assert (told.retry_after_ms, told.trailers()) == (0, (("grpc-retry-pushback-ms", "-1"),))


@pytest.mark.parametrize(
    "error",
    [errors.Overloaded("too much", 0.042), errors.NotFound("model"), shared_errors.BadInput("texts", "is empty")],
)
def test_what_another_replica_said_is_told_as_it_was_said(error: TandemError) -> None:
    said = errors.status_of(error)
    told = errors.status_of(errors.Relayed(said.code, said.message, said.trailers()))
    assert (told.code, told.message, told.retry_after_ms) == (said.code, said.message, said.retry_after_ms)
    assert told.trailers() == said.trailers()
    odd = (("x-more", "1"), ("odd-bin", b"\x00"))
    assert errors.status_of(errors.Relayed(grpc.StatusCode.ABORTED, "é" * 999, odd)).trailers() == odd


def test_a_message_that_quotes_the_caller_stays_short() -> None:
    told = errors.status_of(errors.NotFound("é" * 1_000_000))
    assert len(told.message.encode()) < 1000

"""Arguments of a caller, checked before anything is sent: each complaint names its argument."""

from collections.abc import Iterable
from numbers import Integral

from protos.scoring.v1 import scoring_pb2
from realtime_service.client import errors
from shared_model.types import Priority

_PRIORITIES = {
    Priority.UNSPECIFIED: scoring_pb2.PRIORITY_UNSPECIFIED,
    Priority.REAL_TIME: scoring_pb2.REAL_TIME,
    Priority.NORMAL: scoring_pb2.NORMAL,
    Priority.BATCH: scoring_pb2.BATCH,
}


def several(name: str, given: str | Iterable[str]) -> list[str]:
    """One text or id, or several, as a list. Raises: InvalidRequest for what is no text, and what has no UTF-8."""
    if isinstance(given, str):
        texts = [given]
    elif isinstance(given, Iterable) and not isinstance(given, bytes):
        texts = list(given)
    else:
        raise errors.invalid(f"{name}: is {_kind(given)}, must be a str or several")
    for place, text in enumerate(texts):
        check_text(name if given is text else f"{name}[{place}]", text)
    return texts


def check_text(name: str, text: object) -> None:
    """Raises: InvalidRequest."""
    if not isinstance(text, str):
        raise errors.invalid(f"{name}: is {_kind(text)}, must be a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"is not valid Unicode: half of a surrogate pair at character {error.start}"
        raise errors.invalid(f"{name}: {problem}") from None


def check_timeout(timeout_ms: object) -> None:
    """Raises: InvalidRequest."""
    if timeout_ms is None:
        return
    if not isinstance(timeout_ms, Integral):
        raise errors.invalid(f"timeout_ms: is {timeout_ms!r}, must be a whole number")
    if timeout_ms <= 0:
        raise errors.invalid(f"timeout_ms: is {timeout_ms}, must be positive; without one, leave it out")


def on_the_wire(priority: Priority) -> scoring_pb2.Priority:
    """Raises: InvalidRequest."""
    if priority not in _PRIORITIES:
        raise errors.invalid(f"priority: is {priority!r}, must be one of {', '.join(map(str, Priority))}")
    return _PRIORITIES[priority]


def _kind(given: object) -> str:
    return type(given).__name__

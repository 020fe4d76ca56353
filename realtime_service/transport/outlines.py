"""Reads of a request, without parsing it, the numbers that its quota depends on and the id that its refusal names."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from realtime_service.serving.early_shedding import EarlyShedding
from realtime_service.serving.request import MAX_REQUEST_ID, CallContext
from realtime_service.transport.message_fields import Field, fields
from realtime_service.transport.messages import MAX_MESSAGE_BYTES, SMALL_BYTES
from shared_model.types import MAX_TEXTS

#: Fields that are read of a message, as many as the largest valid one has: texts, pairs, and others. Those after them
#: are not looked at, because each takes 2.5 µs of the event loop.
MOST_FIELDS = 2 * MAX_TEXTS + 128
#: Bytes that are read of a name, as many as the longest id may have: to decode a name of megabytes takes the event loop
#: longer than to parse its message.
_NAME_BYTES = 4 * MAX_REQUEST_ID


class Outline(NamedTuple):
    """`charged`: the texts that a request counts as."""

    model: str
    charged: int


def check_quota(shedding: EarlyShedding, call: CallContext, raw: bytes, outline: Callable[[bytes], Outline]) -> None:
    """Raises: Overloaded for a large request that is over its caller's quota."""
    # Parsing refuses a larger one at once.
    if SMALL_BYTES < len(raw) <= MAX_MESSAGE_BYTES and not call.forwarded and shedding.quotas_apply:
        model, charged = outline(raw)
        # One without a text that was seen has one among its further fields, or is invalid.
        shedding.check_quota(call.caller, model, max(1, charged))


def first_fields(kind: type[Message], raw: bytes) -> Sequence[Field]:
    """The first fields of a message, without parsing it. Their contents are views."""
    descriptor: Descriptor = kind.DESCRIPTOR  # type: ignore[assignment]  # its stubs know two classes of them
    return list(itertools.islice(fields(descriptor, memoryview(raw)), MOST_FIELDS))


def name(kind: type[Message], field: str, raw: bytes) -> str:
    """An id or another name in a message that is not parsed, as far as a valid one is long; "" without it among the
    first fields. `field`: like "request.request_id"."""
    # Like a parser, take the last.
    found = [content for it, _, content in first_fields(kind, raw) if it == field and content is not None]
    return text(found[-1])[:MAX_REQUEST_ID] if found else ""


def text(content: bytes | memoryview) -> str:
    """A name: as much of it as a valid one has."""
    return str(content[:_NAME_BYTES], "utf-8", "replace")

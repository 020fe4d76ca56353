"""The quota of a large request, by the sizes of its fields: one that is over it is refused unparsed."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from realtime_service.serving.early_shedding import EarlyShedding
from realtime_service.serving.request import CallContext
from realtime_service.transport.message_fields import Field, fields
from realtime_service.transport.messages import SMALL_BYTES


class Outline(NamedTuple):
    """`charged`: the texts that a request counts as."""

    model: str
    charged: int


def check_quota(
    shedding: EarlyShedding, call: CallContext, raw: bytes, outline: Callable[[bytes], Outline | None]
) -> None:
    """Raises: Overloaded for a large request that is over its caller's quota."""
    if len(raw) > SMALL_BYTES and not call.forwarded and (found := outline(raw)):
        shedding.check_quota(call.caller, *found)


def few_fields(kind: type[Message], raw: bytes, most: int) -> Sequence[Field] | None:
    """The fields of a message, without parsing it; None if there are more than `most`. Their contents are views."""
    descriptor: Descriptor = kind.DESCRIPTOR  # type: ignore[assignment]  # its stubs know two classes of them
    found = list(itertools.islice(fields(descriptor, memoryview(raw)), most + 1))
    return found if len(found) <= most else None


def text(content: bytes | memoryview) -> str:
    return str(content, "utf-8", "replace")

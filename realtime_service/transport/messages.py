"""Parses messages within bounds.

Handlers take raw bytes, because gRPC's own parser would answer a text that is not UTF-8 before any handler runs, with a
status for a failure of the server.
"""

import asyncio
import functools
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from realtime_service.errors import MessageTooLarge
from realtime_service.transport.message_fields import fields
from shared_model.errors import BadInput
from shared_model.types import MAX_TEXT_BYTES, MAX_TEXTS

#: The largest request of single texts, and 64 KiB for its other fields. Pairs of the longest texts need two requests.
MAX_MESSAGE_BYTES = MAX_TEXTS * MAX_TEXT_BYTES + 64 * 1024
#: The limit of the transport. It is above ours, because we refuse a message in a few milliseconds, and the transport,
#: which reads it to its end, in a hundred.
TRANSPORT_MESSAGE_BYTES = 4 * MAX_MESSAGE_BYTES
#: Fields of a valid message, at most: ids to watch and their tickets. 64 texts and pairs of a tensor have fewer.
MAX_FIELDS = 2_400
#: A larger message is parsed by a thread, its fields are counted first, and a damaged one is refused as a whole.
SMALL_BYTES = 64 * 1024
#: Fields of a damaged message that are searched for the one to name.
SEARCHED_FIELDS = 65

#: One thread: several would each take a turn at the interpreter lock for one turn of the event loop.
_LARGE_MESSAGES = ThreadPoolExecutor(1, "large-messages")

Message = TypeVar("Message")
Parsed = TypeVar("Parsed")


async def read(parser: Callable[[bytes], Parsed], raw: bytes) -> Parsed:
    """Parse a message on the event loop if that takes less than handing it to a thread. Raises: as `parser`."""
    return parser(raw) if len(raw) <= SMALL_BYTES else await apart(parser, raw)


async def apart(read: Callable[..., Parsed], *arguments: object) -> Parsed:
    """Call a function that reads a large message, in the thread for that. Raises: as `read`."""
    return await asyncio.get_running_loop().run_in_executor(_LARGE_MESSAGES, read, *arguments)


async def read_message(kind: type[Message], raw: bytes) -> Message:
    """Raises: as `parse`."""
    return await read(functools.partial(parse, kind), raw)


def parse(kind: type[Message], raw: bytes, most_fields: int = MAX_FIELDS) -> Message:
    """Decode one message. A message of many small fields takes 10 times its size in memory, so they are counted first.

    Raises: MessageTooLarge; BadInput naming the field that is not UTF-8, or "request" for other damage.
    """
    check_size(len(raw))
    parser: Callable[[bytes], Message] = kind.FromString  # type: ignore[attr-defined]
    descriptor: Descriptor = kind.DESCRIPTOR  # type: ignore[attr-defined]
    if _has_more_fields(descriptor, raw, most_fields):
        raise BadInput("request", f"has more than {most_fields} fields")
    try:
        return parser(raw)
    except DecodeError as error:
        raise BadInput(*_damage(descriptor, raw)) from error


def check_size(size: int, most: int = MAX_MESSAGE_BYTES) -> None:
    """`size`: of a message, in bytes. Raises: MessageTooLarge."""
    if size > most:
        raise MessageTooLarge(f"the message has {size} bytes, at most {most} are taken; send fewer texts")


def _has_more_fields(descriptor: Descriptor, raw: bytes, most: int) -> bool:
    return len(raw) > SMALL_BYTES and any(itertools.islice(fields(descriptor, memoryview(raw)), most, None))


def _damage(descriptor: Descriptor, raw: bytes) -> tuple[str, str]:
    """The first string field of a damaged message that is not UTF-8: (field, problem)."""
    searched = itertools.islice(fields(descriptor, raw), SEARCHED_FIELDS) if len(raw) <= SMALL_BYTES else ()
    for name, known, content in searched:
        if known is not None and known.type == known.TYPE_STRING and content is not None:
            try:
                str(content, "utf-8")
            except UnicodeDecodeError as error:
                return name, f"is not valid UTF-8 at byte {error.start}"
    return "request", "is not a message of this type"

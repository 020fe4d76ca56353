"""Encodes and decodes tensors: texts in, texts and numbers out. Every error names the tensor."""

import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from realtime_service.serving.request import check_text
from shared_model.errors import BadInput
from shared_model.types import MAX_TEXTS

_LENGTH = struct.Struct("<I")

Bytes = TypeVar("Bytes", bytes, memoryview)


def rows(name: str, shape: Sequence[int]) -> int:
    """The number of texts of a tensor of this shape. Raises: BadInput."""
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
        raise BadInput(name, f"has shape {_shown(shape)}, must have [n] or [n,1]")
    if not 1 <= shape[0] <= MAX_TEXTS:
        raise BadInput(name, f"has shape {_shown(shape)}, must hold 1 to {MAX_TEXTS} texts")
    return shape[0]


def texts(name: str, elements: Iterable[bytes], count: int) -> tuple[str, ...]:
    """`count` elements as texts that can be scored. Raises: BadInput."""
    # One element more shows that there are too many, without reading all.
    found = list(itertools.islice(elements, count + 1))
    if len(found) != count:
        raise BadInput(name, f"holds {'more' if len(found) > count else 'fewer'} texts than the {count} of its shape")
    return tuple(_text(f"{name}[{index}]", element) for index, element in enumerate(found))


def unpack(name: str, raw: Bytes) -> Iterator[Bytes]:
    """The elements of a raw BYTES tensor, each after its length: 4 bytes, little-endian; of a view, views. Raises:
    BadInput."""
    start = 0
    while start < len(raw):
        data = start + _LENGTH.size
        if data > len(raw):
            raise BadInput(name, f"ends inside a length, at byte {start}")
        (length,) = _LENGTH.unpack_from(raw, start)
        start = data + length
        if start > len(raw):
            raise BadInput(
                name, f"ends inside an element: {length} bytes from byte {data} on, but there are {len(raw)}"
            )
        yield raw[data:start]


def sizes(raw: bytes | memoryview) -> list[int]:
    """Those of the elements of a raw BYTES tensor, of as many as a request may have, up to the first damaged one."""
    found = list[int]()
    with suppress(BadInput):
        found.extend(map(len, itertools.islice(unpack("", memoryview(raw)), MAX_TEXTS)))
    return found


def pack(values: Iterable[str]) -> bytes:
    """A raw BYTES tensor."""
    encoded = [value.encode() for value in values]
    return b"".join(part for value in encoded for part in (_LENGTH.pack(len(value)), value))


def pack_numbers(numbers: NDArray[np.float32]) -> bytes:
    """A raw FP32 tensor."""
    return np.ascontiguousarray(numbers, dtype="<f4").tobytes()


def _text(name: str, element: bytes) -> str:
    try:
        text = element.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(name, f"is not valid UTF-8 at byte {error.start}") from None
    check_text(name, text)
    return text


def _shown(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape[:4]))}{',…' if len(shape) > 4 else ''}]"

"""Encodes the texts of a request in chunks. The work ends on the way where the request cannot be answered in time."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from shared_model.encoding import Encoder, Encoding, Text

#: Texts up to this many characters are encoded on the event loop: it takes less than handing them to a thread.
_INLINE_CHARACTERS = 1_000
#: Characters of a chunk, some milliseconds of work; a longer text is a chunk of its own.
_CHUNK_CHARACTERS = 16_384
#: Chunks of all requests that are encoded at once; the others wait in their order.
_POOL = ThreadPoolExecutor(max_workers=4, thread_name_prefix="encode")


async def encode(
    encoder: Encoder, texts: Sequence[Text], check: Callable[[Sequence[Encoding]], None]
) -> list[Encoding]:
    """`check`: called between chunks with the encodings so far; what it raises ends the work."""
    if not are_long(texts):
        return [encoder.encode(text) for text in texts]
    loop, encodings = asyncio.get_running_loop(), list[Encoding]()
    for chunk in _chunks(texts):
        if encodings:
            check(encodings)
        encodings += await loop.run_in_executor(_POOL, encoder.encode_many, chunk)
    return encodings


def are_long(texts: Sequence[Text]) -> bool:
    """Whether texts are encoded apart from the event loop, for a millisecond or more."""
    return sum(map(_characters, texts)) > _INLINE_CHARACTERS


def _characters(text: Text) -> int:
    return len(text) if isinstance(text, str) else sum(map(len, text))


def _chunks(texts: Sequence[Text]) -> Iterator[list[Text]]:
    chunk, size = list[Text](), 0
    for text in texts:
        if chunk and size + _characters(text) > _CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
        chunk.append(text)
        size += _characters(text)
    yield chunk

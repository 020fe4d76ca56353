"""Text → tokens → batches. Both paths use only this code, so the model gets the same input from both."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding as TokenizerOutput
from tokenizers import Tokenizer

from shared_model.errors import BadInput
from shared_model.redis_store import keys

#: Input of a model: one text, or a pair of texts, depending on its release.
Text = str | tuple[str, str]
#: Tokens of a text → tokens including padding.
Bucketing = Callable[[int], int]

#: Coarse buckets are multiples of this, so that engines meet few distinct shapes: an engine that compiles for shapes
#: keeps memory for each (INT8 of all-MiniLM-L6-v2: about 20 KB for each token of a shape).
TOKEN_STEP = 8
#: Above FINE_TOKENS, which few messages exceed, coarse buckets are multiples of a larger step.
FINE_TOKENS, COARSE_TOKEN_STEP = 64, 32

#: Fine buckets, for the nightly run: (most tokens, step); above the last, `TOKEN_STEP`. For chat messages of 18 tokens
#: on average, 1 % of all tokens is padding instead of 17 %, with half as many shapes as without padding.
_FINE_STEPS = ((24, 1), (48, 2), (96, 4))


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Input of a model: at most `max_tokens`, special tokens included; one text or (`pairs`) two at a time, optionally
    (`types`) with the type of each token."""

    max_tokens: int
    pairs: bool = False
    types: bool = False

    def texts(self, texts: Sequence[str], text_pairs: Sequence[str]) -> list[Text]:
        """A request's texts in the form that the model reads. Raises: BadInput for missing or unexpected pairs, or a
        different number of texts and pairs."""
        if text_pairs and not self.pairs:
            raise BadInput("text_pairs", "is set, but this release reads single texts")
        if self.pairs and len(text_pairs) != len(texts):
            raise BadInput("text_pairs", f"holds {len(text_pairs)} texts, must hold one for each of {len(texts)} texts")
        return list(zip(texts, text_pairs, strict=True)) if self.pairs else list(texts)


@dataclass(frozen=True, slots=True)
class Encoding:
    """One encoded text. `ids`: int32, special tokens included. `types`: the text of a pair to which each token belongs,
    int32; None if the model does not read it."""

    ids: NDArray[np.int32]
    truncated: bool
    types: NDArray[np.int32] | None = None

    @property
    def tokens(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Arrays are int64 of shape (rows, tokens). `mask`: 1 for a token, 0 for padding. `types`: as in Encoding."""

    ids: NDArray[np.int64]
    mask: NDArray[np.int64]
    types: NDArray[np.int64] | None = None

    @property
    def rows(self) -> int:
        return int(self.ids.shape[0])

    @property
    def tokens(self) -> int:
        """Tokens per row, padding included."""
        return int(self.ids.shape[1])

    def widened(self, tokens: int) -> "TokenBatch":
        """The batch padded to `tokens` per row, at least its own."""
        if tokens == self.tokens:
            return self
        types = None if self.types is None else _widened(self.types, tokens)
        return TokenBatch(_widened(self.ids, tokens), _widened(self.mask, tokens), types)


class Encoder:
    """A release's tokenizer. Safe to call from several threads.

    `reads`: the input of the model.
    """

    def __init__(self, tokenizer_json: bytes, reads: InputSpec, release: str) -> None:
        self._tokenizer = Tokenizer.from_buffer(tokenizer_json)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(reads.max_tokens)
        self._release = release
        self.reads = reads

    def encode(self, text: Text) -> Encoding:
        pair = (text,) if isinstance(text, str) else text
        return self._encoding(self._tokenizer.encode(*pair))

    def encode_many(self, texts: Sequence[Text]) -> list[Encoding]:
        return [self._encoding(e) for e in self._tokenizer.encode_batch_fast(list(texts))]

    def key(self, encoding: Encoding) -> bytes:
        """16-byte hash of (release, encoded tokens), equal for texts with the same encoding."""
        types = b"" if encoding.types is None else encoding.types.tobytes()
        return keys.encoding(self._release, encoding.ids.tobytes(), types)

    def _encoding(self, encoded: TokenizerOutput) -> Encoding:
        types = np.asarray(encoded.type_ids, dtype=np.int32) if self.reads.types else None
        return Encoding(np.asarray(encoded.ids, dtype=np.int32), bool(encoded.overflowing), types)


def coarse_bucket(tokens: int) -> int:
    """`tokens` rounded up to a width for which engines are warmed up."""
    step = TOKEN_STEP if tokens <= FINE_TOKENS else COARSE_TOKEN_STEP
    return -(-tokens // step) * step


def fine_bucket(tokens: int) -> int:
    """`tokens` rounded up to a width of the nightly run, whose engines build shapes on demand."""
    step = next((step for most, step in _FINE_STEPS if tokens <= most), TOKEN_STEP)
    return -(-tokens // step) * step


def coarse_buckets(max_tokens: int) -> list[int]:
    """All values of `coarse_bucket` up to `max_tokens` (at least `TOKEN_STEP`), ascending."""
    return sorted({width for width in map(coarse_bucket, range(1, max_tokens + 1)) if width <= max_tokens})


def collate(encodings: Sequence[Encoding], bucketing: Bucketing = coarse_bucket) -> TokenBatch:
    """Pad to one rectangle. Padding is masked, so a row's scores do not depend on other rows."""
    width = bucketing(max(e.tokens for e in encodings))
    ids = np.zeros((len(encodings), width), dtype=np.int64)
    mask = np.zeros_like(ids)
    types = None if encodings[0].types is None else np.zeros_like(ids)
    for row, encoding in enumerate(encodings):
        ids[row, : encoding.tokens] = encoding.ids
        mask[row, : encoding.tokens] = 1
        if types is not None and encoding.types is not None:
            types[row, : encoding.tokens] = encoding.types
    return TokenBatch(ids, mask, types)


def _widened(array: NDArray[np.int64], tokens: int) -> NDArray[np.int64]:
    wide = np.zeros((len(array), tokens), np.int64)
    wide[:, : array.shape[1]] = array
    return wide


def plan_batches(
    lengths: Sequence[int], max_rows: int, token_budget: int, bucketing: Bucketing = coarse_bucket
) -> list[list[int]]:
    """Cut rows into batches of similar length: indices into `lengths`, longest rows first.

    Each batch has at most `max_rows` rows and at most `token_budget` tokens, padding included; a single row longer
    than the budget is a batch of its own. Longest first, so that memory peaks at the start. `collate` must be called
    with the same `bucketing`.

    Rows of a batch share a padded width: CPU engines at low precision round differently at different widths (by 5e-3
    of probability in BF16, 2e-2 in INT8), but at one width a row's scores are bit-identical in any batch.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches: list[list[int]] = []
    for width, rows in itertools.groupby(order, key=lambda i: bucketing(lengths[i])):
        size = max(1, min(max_rows, token_budget // width))
        batches += _cut(list(rows), size)
    return batches


def _cut(rows: list[int], size: int) -> list[list[int]]:
    """Batches of `size`, then of powers of two: other sizes would be shapes that hardly occur again."""
    full = len(rows) // size * size
    batches = [rows[start : start + size] for start in range(0, full, size)]
    left = rows[full:]
    while left:
        most = 1 << (len(left).bit_length() - 1)
        batches.append(left[:most])
        left = left[most:]
    return batches

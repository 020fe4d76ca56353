"""Text → tokens → batches. The only code either path uses for it, so that both feed the model the same thing."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding as TokenizerOutput
from tokenizers import Tokenizer

from shared_model.errors import BadInput
from shared_model.redis_store import keys

#: What a model reads: one text, or a pair of texts where its release says so.
Text = str | tuple[str, str]
#: Tokens → tokens with padding: a ladder of widths.
Bucketing = Callable[[int], int]

#: Batches are padded to a multiple of this, so that engines meet few distinct shapes: one that compiles for them keeps
#: memory for each (INT8 of all-MiniLM-L6-v2: some 20 KB for each token of it).
TOKEN_STEP = 8
#: Above so many tokens, which few messages have, to a multiple of a larger step.
FINE_TOKENS, COARSE_TOKEN_STEP = 64, 32

#: Steps of the nightly run's ladder, each up to so many tokens; above the last, `TOKEN_STEP`. 1 % of all tokens is
#: padding where the ladder of 8 makes it 17 % (chat messages, 18 tokens on average), at half as many shapes as without
#: any padding.
_SNUG_STEPS = ((24, 1), (48, 2), (96, 4))


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What a model reads: at most `max_tokens`, special tokens included; one text or (`pairs`) two at a time, and then
    perhaps (`types`) which of the two each token belongs to."""

    max_tokens: int
    pairs: bool = False
    types: bool = False

    def texts(self, texts: Sequence[str], text_pairs: Sequence[str]) -> list[Text]:
        """What a request holds, as this model reads it. Raises: BadInput where it holds pairs and should not, or the
        reverse, or not as many of one as of the other."""
        if text_pairs and not self.pairs:
            raise BadInput("text_pairs", "is set, but this release reads single texts")
        if self.pairs and len(text_pairs) != len(texts):
            raise BadInput("text_pairs", f"holds {len(text_pairs)} texts, must hold one for each of {len(texts)} texts")
        return list(zip(texts, text_pairs, strict=True)) if self.pairs else list(texts)


@dataclass(frozen=True, slots=True)
class Encoding:
    """One text as the model reads it. `ids`: int32, special tokens included. `types`: which text of a pair each token
    belongs to, int32; None where the model does not read it."""

    ids: NDArray[np.int32]
    truncated: bool
    types: NDArray[np.int32] | None = None

    @property
    def tokens(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """All int64 of shape (rows, tokens). `mask` is 1 where there is a token, 0 where there is padding; `types` as in
    Encoding."""

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
        """The same, padded to `tokens` per row, which must not be fewer."""
        if tokens == self.tokens:
            return self
        types = None if self.types is None else _widened(self.types, tokens)
        return TokenBatch(_widened(self.ids, tokens), _widened(self.mask, tokens), types)


class Encoder:
    """A release's tokenizer. Safe to call from several threads.

    `reads` says what the model takes: at most `max_tokens`, one text or a pair, with or without token types.
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
        """16 bytes that name (release, encoded tokens): two texts the model cannot tell apart share a key."""
        types = b"" if encoding.types is None else encoding.types.tobytes()
        return keys.encoding(self._release, encoding.ids.tobytes(), types)

    def _encoding(self, encoded: TokenizerOutput) -> Encoding:
        types = np.asarray(encoded.type_ids, dtype=np.int32) if self.reads.types else None
        return Encoding(np.asarray(encoded.ids, dtype=np.int32), bool(encoded.overflowing), types)


def coarse_bucket(tokens: int) -> int:
    """`tokens` rounded up to the ladder of shapes that engines are warmed for."""
    step = TOKEN_STEP if tokens <= FINE_TOKENS else COARSE_TOKEN_STEP
    return -(-tokens // step) * step


def fine_bucket(tokens: int) -> int:
    """`tokens` rounded up to the finer ladder of the nightly run, whose engines build their shapes as they go."""
    step = next((step for most, step in _SNUG_STEPS if tokens <= most), TOKEN_STEP)
    return -(-tokens // step) * step


def coarse_buckets(max_tokens: int) -> list[int]:
    """All widths up to `max_tokens` (at least `TOKEN_STEP`) that `coarse_bucket` knows, ascending."""
    return sorted({width for width in map(coarse_bucket, range(1, max_tokens + 1)) if width <= max_tokens})


def collate(encodings: Sequence[Encoding], bucketing: Bucketing = coarse_bucket) -> TokenBatch:
    """Pad to one rectangle. Padding is masked, so an answer does not depend on its neighbours."""
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
    than the budget is a batch of its own. Longest first, so that memory peaks at the start and not at the end.
    `widths` is the ladder that rows are padded to; `collate` must be told the same.

    Rows of a batch share a padded width: CPU engines at low precision round differently at different widths (seen:
    5e-3 of probability in BF16, 2e-2 in INT8), but at one width a row's scores are the same bits in any company.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches: list[list[int]] = []
    for width, rows in itertools.groupby(order, key=lambda i: bucketing(lengths[i])):
        size = max(1, min(max_rows, token_budget // width))
        batches += _cut(list(rows), size)
    return batches


def _cut(rows: list[int], size: int) -> list[list[int]]:
    """Batches of `size`, then of powers of two: leftovers of any size would be shapes that are hardly met again."""
    full = len(rows) // size * size
    batches = [rows[start : start + size] for start in range(0, full, size)]
    left = rows[full:]
    while left:
        most = 1 << (len(left).bit_length() - 1)
        batches.append(left[:most])
        left = left[most:]
    return batches

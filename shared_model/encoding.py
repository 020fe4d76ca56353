"""Text → tokens → batches. Both paths use only this code, so the model gets the same input from both."""

import itertools
import json
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

#: Characters of a long text that are encoded first, for each token that the model reads; then as many times more.
_FIRST_CHARACTERS, _MORE = 8, 8
#: Words before a cut that what follows it may change: of "'ll", a cut makes up to two.
_OPEN_WORDS = 3
#: Parts of a tokenizer by which a character changes its own word and the next ones, but none before.
_LOCAL_NORMALIZERS = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
_LOCAL_WORDS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "ByteLevel"}
#: A word as far as it counts for `Encoder.fewest_tokens`, from its first letter or digit on: normalizers may remove, or
#: join, what has neither.
_WORD = re.compile("[A-Za-z0-9][^ \t\r\n]*")
_LETTERS = " ".join(string.ascii_letters + string.digits)


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

    @property
    def size(self) -> int:
        """Tokens that run, padding included."""
        return self.rows * self.tokens

    def __str__(self) -> str:
        return f"{self.rows} rows of {self.tokens} tokens"

    def part(self, first: int, rows: int) -> "TokenBatch":
        """So many rows from `first` on, fewer where it ends before."""
        only = slice(first, first + rows)
        return TokenBatch(self.ids[only], self.mask[only], None if self.types is None else self.types[only])


class Encoder:
    """A release's tokenizer. Safe to call from several threads.

    `reads`: the input of the model. Of a long text, only a prefix is tokenised that has the same encoding.
    """

    def __init__(self, tokenizer_json: bytes, reads: InputSpec, release: str) -> None:
        self._tokenizer = Tokenizer.from_buffer(tokenizer_json)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        document = json.loads(tokenizer_json)
        self._open_characters = _open_characters(document)
        self._counts_words = self._open_characters is not None and self._keeps_words(document)
        self._tokenizer.enable_truncation(reads.max_tokens)
        self._special_tokens = self._tokenizer.num_special_tokens_to_add(reads.pairs)
        self._first_characters = _FIRST_CHARACTERS * reads.max_tokens
        self._release = release
        self.reads = reads

    def encode(self, text: Text) -> Encoding:
        if self._is_long(text):
            return self.encode_many([text])[0]
        pair = (text,) if isinstance(text, str) else text
        return self._encoding(self._tokenizer.encode(*pair))

    def encode_many(self, texts: Sequence[Text]) -> list[Encoding]:
        if not any(map(self._is_long, texts)):
            return [self._encoding(e) for e in self._tokenizer.encode_batch_fast(list(texts))]
        short = iter(self._tokenizer.encode_batch_fast([text for text in texts if not self._is_long(text)]))
        return [self._encoding(self._encode_long(text) if self._is_long(text) else next(short)) for text in texts]

    def key(self, encoding: Encoding) -> bytes:
        """16-byte hash of (release, encoded tokens), equal for texts with the same encoding."""
        types = b"" if encoding.types is None else encoding.types.tobytes()
        return keys.encoding(self._release, encoding.ids.tobytes(), types)

    def fewest_tokens(self, text: str) -> int:
        """Tokens that a text, or a pair that begins with it, has at least, by its words and without tokenising it."""
        words = len(_WORD.findall(text, 0, self._first_characters)) if self._counts_words else 0
        return min(self.reads.max_tokens, max(1, words + self._special_tokens))

    def _keeps_words(self, document: Mapping[str, Any]) -> bool:
        """Whether each word has a token of its own: no added one holds a space, and the vocabulary has all letters."""
        if any(re.search(r"\s", it["content"]) for it in document["added_tokens"]):
            return False
        words = set(self._tokenizer.encode(_LETTERS, add_special_tokens=False).word_ids)
        return len(words) == len(_LETTERS.split())

    def _is_long(self, text: Text) -> bool:
        longest = len(text) if isinstance(text, str) else max(map(len, text))
        return self._open_characters is not None and longest > self._first_characters

    def _encode_long(self, text: Text) -> TokenizerOutput:
        if isinstance(text, str):
            return self._prefix(text, special=True)[1]
        (first, read), (second, read_too) = (self._prefix(it, special=False) for it in text)
        # Of two texts that fill the model, the longer one may get the odd token: which one it is, only the whole tells.
        both = read.overflowing and read_too.overflowing
        return self._apart(text if both else (first, second), special=True)

    def _prefix(self, text: str, special: bool) -> tuple[str, TokenizerOutput]:
        """A prefix with the same encoding as the text, and that encoding. `special`: with special tokens."""
        characters = self._first_characters
        while True:
            prefix = text[:characters]
            encoded = self._apart(prefix, special)
            if len(prefix) == len(text) or self._is_settled(prefix, encoded):
                return prefix, encoded
            characters *= _MORE

    def _apart(self, text: Text, special: bool) -> TokenizerOutput:
        """Encode as a batch: alone, a text keeps the interpreter lock to its end, which may be tens of milliseconds."""
        return self._tokenizer.encode_batch([text], add_special_tokens=special)[0]

    def _is_settled(self, prefix: str, encoded: TokenizerOutput) -> bool:
        """Whether any text that begins with this prefix has the same tokens, up to the first that the model does not
        read."""
        if not encoded.overflowing:
            return False
        unread, last = encoded.overflowing[0], encoded.overflowing[-1]
        # Special tokens are of no word.
        at, word = next((at, word) for at, word in enumerate(unread.word_ids) if word is not None)
        settled: bool = word <= max(it for it in last.word_ids if it is not None) - _OPEN_WORDS
        end: int = unread.offsets[at][1]
        return settled and end <= len(prefix) - (self._open_characters or 0)

    def _encoding(self, encoded: TokenizerOutput) -> Encoding:
        types = np.asarray(encoded.type_ids, dtype=np.int32) if self.reads.types else None
        return Encoding(np.asarray(encoded.ids, dtype=np.int32), bool(encoded.overflowing), types)


def _open_characters(tokenizer: Mapping[str, Any]) -> int | None:
    """Characters before a cut that an added token could begin in; None for a tokenizer whose words may depend on text
    far behind them. `tokenizer`: its JSON."""
    added = tokenizer["added_tokens"]
    words = list(_parts(tokenizer["pre_tokenizer"], "pretokenizers"))
    by_regex = words and words[0].get("use_regex", True)
    local = {it["type"] for it in _parts(tokenizer["normalizer"], "normalizers")} <= _LOCAL_NORMALIZERS
    if not (by_regex and local and words[0]["type"] in _LOCAL_WORDS) or any(it["normalized"] for it in added):
        return None
    return max((len(it["content"]) for it in added), default=0)


def _parts(part: Mapping[str, Any] | None, inside: str) -> Iterator[Mapping[str, Any]]:
    """The parts of a normaliser or pre-tokeniser, which may be a sequence of them."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for it in part[inside]:
        yield from _parts(it, inside)


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


def plan_batches(
    lengths: Sequence[int],
    max_rows: int,
    token_budget: int,
    bucketing: Bucketing = coarse_bucket,
    few_shapes: bool = True,
) -> list[list[int]]:
    """Cut rows into batches of similar length: indices into `lengths`, longest rows first.

    Each batch has at most `max_rows` rows and at most `token_budget` tokens, padding included; a single row longer
    than the budget is a batch of its own. Longest first, so that memory peaks at the start. `collate` must be called
    with the same `bucketing`. `few_shapes`: sizes recur, for engines that keep something for each shape.

    Rows of a batch share a padded width: CPU engines at low precision round differently at different widths (by 5e-3
    of probability in BF16, 2e-2 in INT8), but at one width a row's scores are bit-identical in any batch.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches: list[list[int]] = []
    for width, rows in itertools.groupby(order, key=lambda i: bucketing(lengths[i])):
        size = max(1, min(max_rows, token_budget // width))
        batches += _cut(list(rows), size, few_shapes)
    return batches


def _cut(rows: list[int], size: int, few_shapes: bool) -> list[list[int]]:
    """Batches of `size`, then (`few_shapes`) of powers of two: other sizes would be shapes that hardly occur again."""
    full = len(rows) // size * size if few_shapes else len(rows)
    batches = [rows[start : start + size] for start in range(0, full, size)]
    left = rows[full:]
    while left:
        most = 1 << (len(left).bit_length() - 1)
        batches.append(left[:most])
        left = left[most:]
    return batches

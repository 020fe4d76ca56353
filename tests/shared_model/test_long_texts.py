"""Long texts: only a prefix is tokenised, and every encoding is the one of the whole text."""

import functools
import json
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from shared_model.encoding import Encoder, InputSpec

MAX_TOKENS = 6
_LETTERS = [chr(code) for code in range(33, 127)] + list("éüß卡片é가")
_PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *_LETTERS, *(f"##{it}" for it in _LETTERS), "card", "##ard", "lost"]


def with_specials(tokenizer: Tokenizer, content: str = "[MASK]", **options: bool) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens([AddedToken(content, normalized=False, special=True, **options)])
    return tokenizer


def word_piece() -> Tokenizer:
    vocabulary = {piece: number for number, piece in enumerate(_PIECES)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=_PIECES[1], max_input_chars_per_word=20))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return with_specials(tokenizer)


def composing_words() -> Tokenizer:
    tokenizer = Tokenizer(
        models.WordLevel({it: at for at, it in enumerate([*_PIECES, "é", "≠", "!"])}, unk_token=_PIECES[1])
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return with_specials(tokenizer, "<|a-b-c d|>", lstrip=True, rstrip=True)


def bytes_pairs() -> Tokenizer:
    alphabet, xs = sorted(pre_tokenizers.ByteLevel.alphabet()), ["x" * 2**power for power in range(1, 6)]
    vocabulary = {piece: number for number, piece in enumerate([*_PIECES[:4], *alphabet, "ca", "Ġc", *xs])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("c", "a"), ("Ġ", "c"), *((x[: len(x) // 2],) * 2 for x in xs)]))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    return with_specials(tokenizer, "<mask>", lstrip=True)


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "WordPiece": word_piece,
    "composing": composing_words,
    "bytes": bytes_pairs,
}

#: Pieces at which a cut may go wrong: combining marks, contractions, parts of added tokens, words too long to be known.
_AWKWARD = [
    *("card", "lost", " ", "\n", "\u3000", " " * 70, "a" * 70, "e" * 21, "卡" * 5, "!", "'ll", "'", "l"),
    *("=", "\u0338", "e", "\u0301", "\x00" * 20, "\u1112", "\u1161", "\u200d"),
    *("[MASK]", "[MA", "SK]", "<|a-b-c d|>", "<|a-b-", "c d|>", "<mask>", "<ma"),
]
pieces = st.one_of(st.text(max_size=8), st.sampled_from(_AWKWARD))
#: Few tokens up to the cut, so that those that count are beside it.
_FILLING = st.one_of(st.just(""), st.integers(25, 50).map(" ".__mul__), st.integers(25, 50).map("x".__mul__))
texts = st.builds(lambda filling, some: filling + "".join(some), _FILLING, st.lists(pieces, max_size=30))


@functools.cache
def encoder(kind: str, pairs: bool = False, max_tokens: int = MAX_TOKENS) -> Encoder:
    spec = InputSpec(max_tokens, pairs=pairs, types=pairs)
    return Encoder(TOKENIZERS[kind]().to_str().encode(), spec, "r")


@functools.cache
def whole(kind: str, max_tokens: int = MAX_TOKENS) -> Tokenizer:
    tokenizer = TOKENIZERS[kind]()
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


@pytest.mark.parametrize("kind", TOKENIZERS)
@example(some=[" " * 30 + "e" * 30])
@example(some=[" " * 32 + "a b c <|a-b-c d|> " + "a " * 20])
@given(some=st.lists(texts, min_size=1, max_size=4))
def test_an_encoding_is_that_of_the_whole_text(kind: str, some: list[str]) -> None:
    together = encoder(kind).encode_many(some)
    for text, found in zip(some, together, strict=True):
        expected, alone = whole(kind).encode(text), encoder(kind).encode(text)
        assert list(found.ids) == list(alone.ids) == expected.ids
        assert found.truncated == alone.truncated == bool(expected.overflowing)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("max_tokens", [7, 8])
@given(first=texts, second=texts)
def test_an_encoding_is_that_of_the_whole_pair(kind: str, max_tokens: int, first: str, second: str) -> None:
    """With an odd and an even number of tokens to share."""
    found = encoder(kind, True, max_tokens).encode((first, second))
    expected = whole(kind, max_tokens).encode(first, second)
    assert found.types is not None
    assert (list(found.ids), list(found.types)) == (expected.ids, expected.type_ids)
    assert found.truncated == bool(expected.overflowing)


def read_of(kind: str, text: str) -> int:
    """The most characters that the encoder hands to its tokenizer at once."""
    one, asked = Encoder(TOKENIZERS[kind]().to_str().encode(), InputSpec(MAX_TOKENS), "r"), []

    class Spy:
        def __init__(self, tokenizer: Tokenizer) -> None:
            self.tokenizer = tokenizer

        def encode_batch(self, texts: list[str], add_special_tokens: bool = True) -> object:
            asked.extend(map(len, texts))
            return self.tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)

        def encode_batch_fast(self, texts: list[str]) -> object:
            asked.extend(map(len, texts))
            return self.tokenizer.encode_batch_fast(texts)

    one._tokenizer = Spy(one._tokenizer)
    one.encode_many([text])
    return max(asked)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", ["card " * 10_000, "a!" * 10_000, "卡! " * 10_000])
def test_only_a_prefix_is_tokenised(kind: str, text: str) -> None:
    assert read_of(kind, text) == 8 * MAX_TOKENS


def test_a_text_whose_prefix_has_too_few_tokens_is_read_further() -> None:
    assert read_of("WordPiece", "a" + " " * 10_000) == 10_001
    assert read_of("WordPiece", ("x" * 60 + " ") * 1_000) == 64 * MAX_TOKENS * 8


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "x.*y"}, "behavior": "Isolated", "invert": False}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "a.*b"}, "content": ""}},
    ],
)
def test_a_tokenizer_that_looks_far_ahead_gets_the_whole_text(change: dict[str, object]) -> None:
    made = {**json.loads(word_piece().to_str()), **change}
    one = Encoder(json.dumps(made).encode(), InputSpec(MAX_TOKENS), "r")
    assert one._open_characters is None


@given(text=st.lists(pieces, min_size=300, max_size=300).map("".join))
def test_the_default_release_encodes_long_texts_as_a_whole(encoder_of_release: Encoder, text: str) -> None:
    one = encoder_of_release
    expected = one._tokenizer.encode(text)
    found = one.encode(text)
    assert (list(found.ids), found.truncated) == (expected.ids, bool(expected.overflowing))


@pytest.fixture(scope="module")
def encoder_of_release(release: object) -> Encoder:
    made: Encoder = release.encoder()  # type: ignore[attr-defined]
    return made


def test_other_threads_go_on_while_a_long_text_is_encoded() -> None:
    """One word has no prefix that settles it: all of it is encoded. A call that keeps the interpreter lock lets others
    in at its ends alone."""
    seen, over = list[float](), threading.Event()

    def look() -> None:
        while not over.wait(0.001):
            seen.append(time.monotonic())

    thread = threading.Thread(target=look)
    thread.start()
    began = time.monotonic()
    encoder("WordPiece").encode_many(["a" * 4_000_000])
    ended = time.monotonic()
    over.set()
    thread.join()
    quarter = (ended - began) / 4
    assert any(began + 2 * quarter < at < ended - quarter for at in seen)

"""How many tokens a text has at least, by its words, against its tokens."""

import itertools
import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from shared_model import demo_messages
from shared_model.encoding import Encoder, InputSpec
from tests.shared_model.test_long_texts import MAX_TOKENS, TOKENIZERS, encoder, texts, word_piece

#: Characters that tokenizers remove or take for spaces, each in its own way.
_SPACES = list(" \t\n\x0b\x0c\x1c\x1f\x85\xa0\u2028\u3000\u200b\ufeff\x00")
spaced = st.lists(st.sampled_from(["a", "B", "7", "é", "\u0301", "!", "[MASK]", "<|a-b-c d|>", *_SPACES]), max_size=40)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("max_tokens", [MAX_TOKENS, 60])
@given(text=st.one_of(texts, spaced.map("".join)), second=texts)
def test_no_text_has_fewer_tokens(kind: str, max_tokens: int, text: str, second: str) -> None:
    one, pairs = (encoder(kind, pairs, max_tokens) for pairs in (False, True))
    assert one.fewest_tokens(text) <= max(1, one.encode(text).tokens)
    assert pairs.fewest_tokens(text) <= max(1, pairs.encode((text, second)).tokens)


def test_words_count_up_to_what_the_model_reads() -> None:
    """Beside two special tokens."""
    one = encoder("WordPiece", max_tokens=60)
    assert [one.fewest_tokens("card " * words) for words in (1, 7, 100, 10_000)] == [3, 9, 60, 60]


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": None},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "a.*b"}, "content": ""}},
        {"added_tokens": [{**json.loads(word_piece().to_str())["added_tokens"][0], "content": "two words"}]},
    ],
)
def test_a_tokenizer_that_may_join_words_has_them_not_counted(change: dict[str, object]) -> None:
    made = {**json.loads(word_piece().to_str()), **change}
    assert Encoder(json.dumps(made).encode(), InputSpec(60), "r").fewest_tokens("card " * 50) == 2


def test_a_vocabulary_without_a_letter_has_words_not_counted() -> None:
    """It drops the letter, and with it a word of it alone."""
    found = []
    for letters in (string.ascii_letters, string.ascii_letters.replace("q", "")):
        tokenizer = Tokenizer(models.BPE({it: number for number, it in enumerate(letters + string.digits)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        one = Encoder(tokenizer.to_str().encode(), InputSpec(60), "r")
        assert one.encode("q").tokens == letters.count("q")
        found.append(one.fewest_tokens("card " * 50))
    assert found == [50, 1]


def test_real_texts_have_as_many_or_more(release: object) -> None:
    one: Encoder = release.encoder()  # type: ignore[attr-defined]
    real = list(itertools.islice(demo_messages.texts(3), 2_000))
    counted = [(one.fewest_tokens(text), one.encode(text).tokens) for text in real]
    assert all(fewest <= tokens for fewest, tokens in counted)
    assert sum(fewest for fewest, _ in counted) > 0.7 * sum(tokens for _, tokens in counted)

"""Both paths feed the model the same tokens, whatever they are batched with."""

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_model.encoding import (
    COARSE_TOKEN_STEP,
    FINE_TOKENS,
    TOKEN_STEP,
    Bucketing,
    Encoder,
    Encoding,
    InputSpec,
    coarse_bucket,
    coarse_buckets,
    collate,
    fine_bucket,
    plan_batches,
)
from shared_model.errors import BadInput
from shared_model.releases.store import Release

messages = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    st.lists(st.sampled_from(["card", "my", "PIN", "won't", "top-up", "€20", "🙂", "überweisung"]), max_size=60).map(
        " ".join
    ),
)
lengths = st.lists(st.integers(1, 256), max_size=200)


def ids(encodings: Sequence[Encoding]) -> list[list[int]]:
    return [list(encoding.ids) for encoding in encodings]


@given(texts=st.lists(messages, min_size=1, max_size=12))
def test_an_encoding_does_not_depend_on_its_neighbours(encoder: Encoder, texts: list[str]) -> None:
    together = encoder.encode_many(texts)
    alone = [encoder.encode(text) for text in texts]
    assert ids(together) == ids(alone)
    assert [e.truncated for e in together] == [e.truncated for e in alone]


@given(texts=st.lists(messages, min_size=1, max_size=12), widths=st.sampled_from([coarse_bucket, fine_bucket]))
def test_collating_keeps_every_token_and_masks_the_rest(encoder: Encoder, texts: list[str], widths: Bucketing) -> None:
    encodings = encoder.encode_many(texts)
    batch = collate(encodings, widths)
    assert (batch.rows, batch.tokens) == (len(texts), widths(max(e.tokens for e in encodings)))
    for row, encoding in enumerate(encodings):
        assert list(batch.ids[row][batch.mask[row] == 1]) == list(encoding.ids)
        assert batch.mask[row].sum() == encoding.tokens
        assert not batch.ids[row][batch.mask[row] == 0].any()


@given(
    lengths=lengths,
    max_rows=st.integers(1, 64),
    token_budget=st.integers(1, 4096),
    widths=st.sampled_from([coarse_bucket, fine_bucket]),
)
def test_a_plan_holds_every_row_once_within_its_bounds(
    lengths: list[int], max_rows: int, token_budget: int, widths: Bucketing
) -> None:
    plan = plan_batches(lengths, max_rows, token_budget, widths)
    assert sorted(row for batch in plan for row in batch) == list(range(len(lengths)))
    for batch in plan:
        (width,) = {widths(lengths[row]) for row in batch}
        assert len(batch) <= max_rows
        assert len(batch) == 1 or width * len(batch) <= token_budget
        full = max(1, min(max_rows, token_budget // width))
        assert len(batch) == full or len(batch).bit_count() == 1
    longest_first = [lengths[row] for batch in plan for row in batch]
    assert longest_first == sorted(longest_first, reverse=True)


@given(tokens=st.integers(1, 10_000))
def test_padding_rounds_up_by_less_than_a_step(tokens: int) -> None:
    step = TOKEN_STEP if tokens <= FINE_TOKENS else COARSE_TOKEN_STEP
    assert 0 <= coarse_bucket(tokens) - tokens < step
    assert coarse_bucket(tokens) % step == 0
    assert coarse_bucket(coarse_bucket(tokens)) == coarse_bucket(tokens)


@given(tokens=st.integers(1, 10_000))
def test_the_nightly_runs_ladder_is_finer_and_pads_no_text_by_more_than_a_tenth(tokens: int) -> None:
    assert tokens <= fine_bucket(tokens) <= coarse_bucket(tokens)
    assert fine_bucket(tokens) - tokens <= tokens / 10
    assert fine_bucket(fine_bucket(tokens)) == fine_bucket(tokens)


@given(most=st.integers(TOKEN_STEP, 600))
def test_the_ladder_is_what_padding_makes_of_texts_that_fit(most: int) -> None:
    widths = coarse_buckets(most)
    assert widths == sorted(set(widths))
    assert {coarse_bucket(tokens) for tokens in range(1, widths[-1] + 1)} == set(widths)
    assert widths[-1] <= most < coarse_bucket(widths[-1] + 1)


@given(one=messages, other=messages)
def test_keys_are_equal_exactly_when_the_model_reads_the_same(encoder: Encoder, one: str, other: str) -> None:
    first, second = encoder.encode(one), encoder.encode(other)
    assert (encoder.key(first) == encoder.key(second)) == (list(first.ids) == list(second.ids))


def test_texts_the_model_cannot_tell_apart_share_a_key(encoder: Encoder) -> None:
    assert encoder.key(encoder.encode("My CARD  is lost")) == encoder.key(encoder.encode(" my card is lost\n"))
    head = "card " * 300
    assert encoder.key(encoder.encode(head + "one")) == encoder.key(encoder.encode(head + "other"))


def test_another_release_has_other_keys(release: Release, encoder: Encoder) -> None:
    other = Encoder(release.read("tokenizer.json"), encoder.reads, "minilm-banking77-000000000000")
    encoding = encoder.encode("my card is lost")
    assert list(other.encode("my card is lost").ids) == list(encoding.ids)
    assert other.key(encoding) != encoder.key(encoding)


def test_a_key_is_the_same_in_every_process_and_version(release: Release) -> None:
    encoder = Encoder(release.read("tokenizer.json"), InputSpec(256), release="r")
    key = hashlib.blake2b(b"r\0" + struct.pack("<3i", 101, 7, 102), digest_size=16).digest()
    assert encoder.key(Encoding(np.array([101, 7, 102], np.int32), False)) == key


@pytest.mark.parametrize(("words", "truncated"), [(254, False), (255, True), (10_000, True)])
def test_truncation_is_told(encoder: Encoder, words: int, truncated: bool) -> None:
    text = "card " * words  # one token each, and two special tokens
    for encoding in (encoder.encode(text), encoder.encode_many([text, "short"])[0]):
        assert encoding.truncated == truncated
        assert encoding.tokens == min(words + 2, encoder.reads.max_tokens)


def test_an_empty_text_is_two_special_tokens(encoder: Encoder) -> None:
    assert list(encoder.encode("").ids) == [101, 102]


PAIRS = InputSpec(max_tokens=16, pairs=True, types=True)
pair_texts = st.lists(st.tuples(messages, messages), min_size=1, max_size=8)


@given(texts=pair_texts)
def test_a_pair_says_which_text_each_token_belongs_to(release: Release, texts: list[tuple[str, str]]) -> None:
    encoder = Encoder(release.read("tokenizer.json"), PAIRS, release="")
    together = encoder.encode_many(texts)
    for (first, second), encoding in zip(texts, together, strict=True):
        alone = encoder.encode((first, second))
        assert alone.types is not None
        assert encoding.types is not None
        assert list(alone.ids) == list(encoding.ids)
        assert list(alone.types) == list(encoding.types)
        assert encoding.tokens <= PAIRS.max_tokens
        # [CLS] first [SEP] is of type 0, second [SEP] of type 1.
        boundary = list(encoding.ids).index(102) + 1
        assert list(encoding.types) == [0] * boundary + [1] * (encoding.tokens - boundary)
    batch = collate(together)
    assert batch.types is not None
    for row, encoding in enumerate(together):
        assert list(batch.types[row][: encoding.tokens]) == list(encoding.types if encoding.types is not None else [])
        assert not batch.types[row][encoding.tokens :].any()


def test_the_order_of_a_pair_is_part_of_its_key(release: Release) -> None:
    encoder = Encoder(release.read("tokenizer.json"), PAIRS, release="r")
    one, other = encoder.encode(("my card", "is lost")), encoder.encode(("is lost", "my card"))
    assert encoder.key(one) != encoder.key(other)


@pytest.mark.parametrize(
    ("pairs", "texts", "text_pairs", "problem"),
    [
        (False, ["a"], ["b"], "reads single texts"),
        (True, ["a", "b"], ["c"], "holds 1 texts, must hold one for each of 2 texts"),
        (True, ["a"], [], "holds 0 texts"),
    ],
)
def test_texts_that_a_release_cannot_read_are_refused_by_field(
    pairs: bool, texts: list[str], text_pairs: list[str], problem: str
) -> None:
    with pytest.raises(BadInput, match=f"text_pairs: .*{problem}"):
        InputSpec(8, pairs=pairs).texts(texts, text_pairs)


def test_texts_become_what_the_release_reads() -> None:
    assert InputSpec(8).texts(["a", "b"], []) == ["a", "b"]
    assert InputSpec(8, pairs=True).texts(["a", "b"], ["c", "d"]) == [("a", "c"), ("b", "d")]

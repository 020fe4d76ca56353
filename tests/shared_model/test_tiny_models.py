"""The models that tests build from are the same in every run: a bound that one meets, all meet."""

import pytest

from tests.shared_model import tiny_models


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_a_tokenizer_is_the_same_each_time_it_is_made(family: str) -> None:
    once, again = (tiny_models.FAMILIES[family]()[1].to_str() for _ in range(2))
    assert once == again

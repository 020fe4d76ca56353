"""The device is kept busy, whatever is slower: it, or the tokeniser. On a simulated one, in virtual time."""

import pytest

from tests.benchmarks.devices import simulated


@pytest.mark.parametrize("ratio", simulated.RATIOS)
def test_the_device_is_idle_only_where_the_tokeniser_is_slower(ratio: float) -> None:
    assert 0.97 * min(1.0, ratio) <= simulated.busy(ratio) <= min(1.0, ratio) * 1.01


def test_with_serial_staging_it_would_not_be() -> None:
    assert simulated.busy(1.1, serial=True, write=0.0) < 0.97

"""The parts of `make bench-interfaces`; what it measures is tested in tests/realtime_service."""

import math
import random
import re

import pytest

from shared_model.published.message_ids import ENTRIES_OF_BLOCK, blocks_of
from tests.benchmarks import rounds
from tests.benchmarks.bench_interfaces import GROUPS
from tests.benchmarks.interfaces import looking_up, tracing_cost


def test_figures_carry_the_bounds_that_were_promised() -> None:
    promised = {target.name: target.bound for target in rounds.targets(GROUPS, list(GROUPS))}
    assert promised == {
        "http_over_grpc_ms": "<= 1.0",
        "lookup_over_echo_p99_ms": "<= 1.0",
        "lookup_epoch_mb": "<= 512",
        "tracing_cost": "<= 0.03",
    }
    assert all(re.fullmatch(r"[a-z_0-9]+", name) for name in promised)


def test_a_night_has_a_million_messages_of_as_many_texts() -> None:
    messages = looking_up.Messages()
    found = dict(messages.entries(1_000))
    assert (looking_up.ROWS, len(found), len(set(found.values()))) == (1_000_000, 1_000, 1_000)
    assert len(dict(blocks_of(messages.entries(1_000), 1_000 // ENTRIES_OF_BLOCK))) == 1_000 // ENTRIES_OF_BLOCK


def test_the_cost_of_tracing_is_an_upper_bound_of_the_median_over_pairs() -> None:
    # At least 15 of 20 pairs are above the median with a probability of 2.1 %, at least 14 with 5.8 %.
    pairs = [number / 1000 for number in range(20)]
    assert tracing_cost.upper_bound(random.Random(1).sample(pairs, 20)) == pytest.approx(math.expm1(pairs[14]))
    held_up = [*pairs[:-1], 5.0]
    assert tracing_cost.upper_bound(held_up) == tracing_cost.upper_bound(pairs)
    assert tracing_cost.upper_bound(pairs[:4]) == math.inf

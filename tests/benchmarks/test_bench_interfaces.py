"""The parts of `make bench-interfaces`; what it measures is tested in tests/realtime_service."""

import math
import random
import re

import pytest

from shared_model.published.message_ids import ENTRIES_OF_BLOCK, blocks_of
from tests.benchmarks import rounds
from tests.benchmarks.bench_interfaces import GROUPS
from tests.benchmarks.interfaces import looking_up, tracing_cost
from tests.benchmarks.interfaces.tracing_cost import Moment
from tests.benchmarks.peers.h2load import Row


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


def test_a_tenth_more_in_each_turn_with_tracing_and_its_exports_are_found() -> None:
    moments, ends, milliseconds, traces = [Moment(0.0, 0.0, 0.0)], list[float](), list[float](), tracing_cost.TURNS
    for number, on in enumerate(traces):
        # The machine has half its speed in the second half, and half the turns hold a call that takes a second.
        took = (1.1 if on else 1.0) * (1 + (number >= len(traces) / 2))
        calls = [took] * 99 + [1000.0 if number % 2 else took]
        milliseconds += calls
        ends += [number + (place + 0.5) / 100 for place in range(100)]
        before = moments[-1]
        moments.append(Moment(number + 1.0, before.exports + 0.002, before.other + 0.08 * took))
    found = tracing_cost.costs_of(moments, Row(0.0, milliseconds, ends))
    assert [tuple(pair) for pair in found.pairs] == [pytest.approx((math.log(1.1),) * 2)] * tracing_cost.PAIRS
    # Of two turns one is traced: 4 ms of exports for a hundred calls, which take 0.8 or 1.6 ms of CPU without.
    assert found.exports == pytest.approx(0.04 / 1.2)
    late = [*moments[:1], *(it._replace(time=it.time + 1) for it in moments[1:])]
    assert len(tracing_cost.costs_of(late, Row(0.0, milliseconds, ends)).pairs) == tracing_cost.PAIRS - 1

"""Numbers that operators set override those of a process's settings; a policy with an invalid one is rejected."""

import math
import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.scoring.v1.storage_pb2 import RoutingPolicy
from realtime_service.routing import overrides
from realtime_service.routing.overrides import Policy
from realtime_service.settings import SERVED, LaneSettings, ServiceSettings
from shared_model.errors import BadInput
from tests.properties import examples

LATENCY, DYNAMIC, THROUGHPUT = SERVED
OURS = overrides.of(ServiceSettings())
LANE_NUMBERS = [f"{lane}.{number}" for lane in SERVED for number in ("p95_ms", "load_target")]
SINGLE = ["latency_below_ms", "throughput_above_ms", "quota"]

callers = st.text(min_size=1, max_size=12).filter(lambda name: name.isprintable())
#: Numbers that can be, whatever the others are.
values = st.fixed_dictionaries(
    {},
    optional={
        "latency_below_ms": st.floats(1, 500),
        "throughput_above_ms": st.floats(500, 5000),
        "quota": st.floats(0, 1e6),
        **{name: st.floats(0, 1 if "load" in name else 1e4) for name in LANE_NUMBERS},
    },
).flatmap(
    lambda plain: st.dictionaries(callers.map(lambda it: f"quota.{it}"), st.floats(0, 1e6), max_size=3).map(
        lambda quotas: {**plain, **quotas}
    )
)


def stored(message: RoutingPolicy) -> bytes:
    message.version = message.version or 1
    return bytes(message.SerializeToString())


def test_without_operators_numbers_the_settings_hold() -> None:
    ours = ServiceSettings(latency_below_ms=50, throughput_above_ms=2000, quota=30.0, dynamic=LaneSettings(p95_ms=80.0))
    policy = overrides.of(ours)
    assert policy == Policy(
        version=0,
        latency_below=0.05,
        throughput_above=2.0,
        targets={LATENCY: 0.05, DYNAMIC: 0.08, THROUGHPUT: 0.5},
        load_targets={LATENCY: 0.6, DYNAMIC: 0.0, THROUGHPUT: 0.95},
        quota=30.0,
        quotas={},
    )
    assert overrides.read(None, policy) is policy


@settings(max_examples=examples(40))
@given(values)
def test_set_numbers_change_and_the_others_stay(changes: dict[str, float]) -> None:
    message = overrides.change(RoutingPolicy(), changes)
    policy = overrides.read(message.SerializeToString(), OURS)
    assert policy.version == 1
    assert overrides.numbers(message) == pytest.approx(changes)
    assert dict(overrides.table(policy)) == pytest.approx({**dict(overrides.table(OURS)), **changes})


@settings(max_examples=examples(40))
@given(values, values)
def test_a_reset_number_is_that_of_the_settings(first: dict[str, float], second: dict[str, float]) -> None:
    message = overrides.change(overrides.change(RoutingPolicy(), first), second)
    assert overrides.numbers(message) == {**first, **second}
    message = overrides.change(message, dict.fromkeys(second))
    assert overrides.numbers(message) == {name: value for name, value in first.items() if name not in second}
    emptied = overrides.change(message, dict.fromkeys(first))
    assert overrides.read(emptied.SerializeToString(), OURS) == replace(OURS, version=4)


def test_milliseconds_become_seconds() -> None:
    changes = {"latency_below_ms": 80.0, "throughput_above_ms": 1500.0, "latency.p95_ms": 40.0, "quota.bob": 7.0}
    policy = overrides.read(overrides.change(RoutingPolicy(version=6), changes).SerializeToString(), OURS)
    assert (policy.version, policy.latency_below, policy.throughput_above) == (7, 0.08, 1.5)
    assert policy.targets == {LATENCY: 0.04, DYNAMIC: 0.0, THROUGHPUT: 0.5}
    assert policy.quotas == {"bob": 7.0}
    assert policy.by_operators == changes


def test_a_stored_policy_that_has_a_number_of_a_former_version_is_read_without_it() -> None:
    # As a former version stored it: `hedged`, a double, was field 8.
    former = stored(RoutingPolicy(version=3, quota=5.0)) + b"\x41" + struct.pack("<d", 0.01)
    policy = overrides.read(former, OURS)
    assert policy == replace(OURS, version=3, quota=5.0, by_operators={"quota": 5.0})
    changed = overrides.change(overrides.decode(former), {"quota": 6.0})
    assert overrides.read(changed.SerializeToString(), OURS).quota == 6.0


WRONG = [
    ("latency_below_ms", 0.0, "a number above 0"),
    ("latency_below_ms", 1001.0, "at most throughput_above_ms, which is 1000"),
    ("throughput_above_ms", -1.0, "a number above 0"),
    ("throughput_above_ms", math.inf, "a number above 0"),
    ("latency.p95_ms", -0.1, "0 or more"),
    ("dynamic.load_target", 1.01, "a share from 0 to 1"),
    ("throughput.load_target", -0.01, "a share from 0 to 1"),
    ("quota", -1.0, "0 or more"),
    ("quota.bob", -1.0, "0 or more"),
    *((name, math.nan, "") for name in (*SINGLE, *LANE_NUMBERS, "quota.bob")),
]


def holding(name: str, value: float) -> RoutingPolicy:
    """A message with a number that `change` would refuse."""
    message, (lane, _, number) = RoutingPolicy(), name.partition(".")
    if not number:
        setattr(message, name, value)
    elif lane == "quota":
        message.quotas[number] = value
    else:
        getattr(message, number)[lane] = value
    return message


@pytest.mark.parametrize(("name", "value", "expected"), WRONG)
def test_an_invalid_stored_number_is_refused_and_named(name: str, value: float, expected: str) -> None:
    with pytest.raises(BadInput) as error:
        overrides.read(stored(holding(name, value)), OURS)
    assert error.value.field == name
    assert expected in error.value.problem


@pytest.mark.parametrize(("name", "value", "expected"), [it for it in WRONG if "at most" not in it[2]])
def test_an_invalid_number_is_not_set(name: str, value: float, expected: str) -> None:
    with pytest.raises(BadInput, match=name):
        overrides.change(RoutingPolicy(), {name: value})


def test_thresholds_are_checked_against_those_of_the_settings() -> None:
    message = stored(RoutingPolicy(throughput_above_ms=90.0))
    with pytest.raises(BadInput, match="latency_below_ms: is 100: expected at most throughput_above_ms, which is 90"):
        overrides.read(message, OURS)
    assert overrides.read(message, replace(OURS, latency_below=0.09)).throughput_above == 0.09


@pytest.mark.parametrize(
    "name", ["speed", "fast.p95_ms", "deferred.p95_ms", "latency.quota", "quota.", "quota.\udcff", "", "version"]
)
def test_an_unknown_number_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=r"is not a number of the policy; it has latency_below_ms, .*quota\.CALLER"):
        overrides.change(RoutingPolicy(), {name: 1.0})


def test_an_unknown_lane_is_refused() -> None:
    message = RoutingPolicy()
    message.p95_ms["deferred"] = 1.0
    with pytest.raises(BadInput, match=r"deferred\.p95_ms: is not a number"):
        overrides.read(stored(message), OURS)


@given(st.binary(max_size=200))
def test_any_stored_bytes_are_a_policy_or_refused(damaged: bytes) -> None:
    try:
        policy = overrides.read(damaged, OURS)
    except BadInput:
        return
    assert policy.version >= 1
    assert policy.latency_below <= policy.throughput_above


@pytest.mark.parametrize("version", [0, -1, 2**63 - 1])
def test_a_policy_without_a_version_is_damaged(version: int) -> None:
    with pytest.raises(BadInput, match="version"):
        overrides.read(RoutingPolicy(version=version, quota=1.0).SerializeToString(), OURS)

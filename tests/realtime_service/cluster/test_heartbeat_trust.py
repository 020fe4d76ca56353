"""Heartbeats with a MAC and a counter: what is forged, stored again or old does not count."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.scoring.v1.scoring_pb2 import ReplicaDescription
from protos.scoring.v1.storage_pb2 import ReplicaState
from realtime_service.cluster import heartbeat
from realtime_service.cluster.heartbeat_trust import SKEW_SECONDS, STILL_SECONDS, HeartbeatTrust
from shared_model.clock import SimulatedClock
from shared_model.trust.keyring import WITHOUT_KEYS, Keyring

KEY = Keyring(cluster=b"k" * 32)
ACCEPTING = Keyring(cluster=KEY.cluster, accept_unsigned=True)


def state(load: float = 0.5) -> ReplicaState:
    written = heartbeat.state(ReplicaDescription(id="b", address="b:1"))
    written.load.append(load)
    return written


class Replicas:
    """Replica "b", and one that reads its heartbeats."""

    def __init__(self, reader: Keyring = KEY, writer: Keyring = KEY) -> None:
        self.clock = SimulatedClock()
        self.b, self.reader = HeartbeatTrust(writer, self.clock), HeartbeatTrust(reader, self.clock)

    def beat(self) -> bytes:
        return self.b.write(state())

    def counts(self, raw: bytes) -> bool:
        self.reader.begin()
        read = self.reader.open(raw)
        return read is not None and self.reader.is_fresh("b", read)


def test_heartbeats_count_and_one_of_before_does_not() -> None:
    both = Replicas()
    former = both.beat()
    assert both.counts(former)
    both.clock.advance(0.25)
    assert both.counts(both.beat())
    assert not both.counts(former)


@given(st.data())
def test_no_changed_byte_passes(data: st.DataObject) -> None:
    both = Replicas()
    raw = bytearray(both.beat())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    assert both.reader.open(bytes(raw)) is None


@given(st.integers(0, 200))
def test_no_part_of_a_heartbeat_passes(length: int) -> None:
    both = Replicas()
    raw = both.beat()
    assert both.reader.open(raw[: min(length, len(raw) - 1)]) is None


def test_fields_after_the_mac_are_not_taken() -> None:
    both = Replicas()
    assert both.reader.open(both.beat() + ReplicaState(load=[9.0]).SerializeToString()) is None


def test_the_same_heartbeat_counts_until_redis_would_have_removed_it() -> None:
    both = Replicas()
    raw = both.beat()
    for _ in range(int(STILL_SECONDS / 0.25) + 1):
        assert both.counts(raw)
        both.clock.advance(0.25)
    assert not both.counts(raw)
    assert both.counts(both.beat())


def test_an_old_heartbeat_does_not_count_for_a_reader_that_has_just_started() -> None:
    both = Replicas()
    raw = both.beat()
    both.clock.advance(SKEW_SECONDS + 1)
    assert not both.counts(raw)


def test_a_replica_that_starts_again_with_its_id_counts_at_once() -> None:
    both = Replicas()
    assert both.counts(both.beat())
    both.clock.advance(0.01)
    both.b = HeartbeatTrust(KEY, both.clock)
    assert both.counts(both.beat())


def test_each_problem_of_a_replica_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    both = Replicas(writer=WITHOUT_KEYS)
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            assert not both.counts(both.beat())
    assert [it.getMessage() for it in caplog.records] == ["the heartbeat of 'b' is unsigned: it is ignored"]


def test_a_flood_of_forged_ids_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    both = Replicas()
    for number in range(1_000):
        both.reader.open(heartbeat.state(ReplicaDescription(id=str(number))).SerializeToString())
    assert len(caplog.records) == 100


@pytest.mark.parametrize(
    ("writer", "reader", "counts"),
    [
        (WITHOUT_KEYS, ACCEPTING, True),
        (WITHOUT_KEYS, KEY, False),
        (KEY, ACCEPTING, True),
        (KEY, WITHOUT_KEYS, True),
        # Signed by a stranger: refused always.
        (Keyring(cluster=b"x" * 32), ACCEPTING, False),
    ],
)
def test_a_rolling_upgrade(writer: Keyring, reader: Keyring, counts: bool) -> None:
    assert Replicas(reader, writer).counts(Replicas(reader, writer).beat()) is counts


def test_a_former_version_reads_a_new_heartbeat() -> None:
    """It takes the fields that it does not know for unknown ones; all others are as before."""
    both = Replicas()
    read = ReplicaState.FromString(both.beat())
    for added in ("counter", "sent_at_ms", "mac"):
        read.ClearField(added)
    assert read == state()

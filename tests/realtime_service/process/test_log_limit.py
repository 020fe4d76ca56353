"""A caller cannot fill the log with gRPC's tracebacks: a few pass in each minute, the others are counted."""

import logging
import socket
from pathlib import Path

import pytest

from protos.scoring.v1 import scoring_pb2
from realtime_service.process.log_limit import GRPC, MOST, PERIOD_SECONDS, LogLimit
from shared_model.clock import SimulatedClock
from shared_model.releases import pointer
from shared_model.releases.store import Store
from tests.load.wire import Wire, prepare
from tests.realtime_service.conftest import start_service
from tests.realtime_service.rollout import tiny_releases

CALLS = 40


def test_a_few_records_of_a_minute_pass_and_one_line_counts_the_others(caplog: pytest.LogCaptureFixture) -> None:
    clock = SimulatedClock()
    with LogLimit("some.library", clock).attached() as limit:
        for minute in range(2):
            for number in range(MOST + 10):
                logging.getLogger("some.library").error("minute %d, record %d", minute, number)
            clock.advance(PERIOD_SECONDS)
            limit.look()
            limit.look()
        # Records of other loggers, and a calm minute, are not counted.
        logging.getLogger("another").error("passes")
        clock.advance(PERIOD_SECONDS)
        limit.look()
    shown = [f"minute {minute}, record {number}" for minute in range(2) for number in range(MOST)]
    counts = ["10 more records of some.library were suppressed"] * 2
    assert caplog.messages == [*shown[:MOST], counts[0], *shown[MOST:], counts[1], "passes"]


def test_a_period_that_ends_without_a_look_ends_with_the_next_record(caplog: pytest.LogCaptureFixture) -> None:
    clock = SimulatedClock()
    with LogLimit("some.library", clock).attached():
        for _ in range(MOST + 1):
            logging.getLogger("some.library").error("first minute")
        clock.advance(PERIOD_SECONDS)
        logging.getLogger("some.library").error("second minute")
    assert caplog.messages[MOST:] == ["1 more records of some.library were suppressed", "second minute"]


@pytest.mark.heavy
def test_headers_that_are_no_utf_8_do_not_fill_the_log(
    own_environment: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "releases")
    pointer.promote(store, None, tiny_releases.seal(store, "tiny").id)
    replica = start_service(tmp_path, Path(store.files.root))
    host, _, port = replica.address.rpartition(":")
    message = prepare(scoring_pb2.ScoreRequest(texts=["card"]).SerializeToString())
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        wire, answered = Wire("log", "/scoring.v1.ScoringService/Score", 20_000, caller_id=b"\xff"), 0
        for _ in range(CALLS):
            wire.call(message)
        while answered < CALLS:
            connection.sendall(wire.outgoing)
            wire.outgoing.clear()
            received = connection.recv(1 << 16)
            assert received, "the service has closed the connection"
            answered += len(wire.receive(received))
    assert replica.stop() == 0
    log = capfd.readouterr().err
    assert log.count(f"{GRPC} ERROR Invalid encoding") == MOST
    # Each such header is decoded several times.
    assert f"more records of {GRPC} were suppressed" in log

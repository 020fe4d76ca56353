"""What `make up` says, and what it writes into an archive."""

from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from tandem_stack import up

from batch_job.settings import InputSettings
from protos.scoring.v1.storage_pb2 import RoutingPolicy
from shared_model.settings import StateSettings


@pytest.mark.parametrize(
    ("messages", "path", "named"),
    [
        ("", "", ""),
        ("/archive", "", "TANDEM_MESSAGES"),
        ("", "/archive/{ds}", "TANDEM_INPUT_PATH"),
        ("/archive", "s3://b/{ds}", "TANDEM_INPUT_PATH"),
    ],
)
def test_demo_messages_are_written_into_no_archive_of_a_persons_own(messages: str, path: str, named: str) -> None:
    state = StateSettings(state=Path("/state"), messages=messages)
    assert up.own_archive(state, InputSettings(input_path=path)) == named


@pytest.mark.parametrize(
    ("now", "day"),
    [
        (datetime(2026, 11, 23, 1, 59, tzinfo=UTC), date(2026, 11, 21)),
        (datetime(2026, 11, 23, 2, 0, tzinfo=UTC), date(2026, 11, 22)),
        (datetime(2026, 11, 23, 23, 0, tzinfo=UTC), date(2026, 11, 22)),
    ],
)
def test_the_day_that_is_due_is_the_one_before_the_schedules_latest_run(now: datetime, day: date) -> None:
    assert up.due_day(now) == day
    assert str(day) in up.demo_messages(day)[1]


def test_it_says_that_a_day_is_scored_now_only_when_it_is() -> None:
    day = date(2026, 11, 22)
    assert "it scores 2026-11-22 now" in up.schedule_line(day, starts=True)
    done = up.schedule_line(day, starts=False)
    assert " now" not in done
    assert done.endswith("2026-11-22 had its run.")


def test_operators_policy_is_shown_with_its_undo() -> None:
    assert up.policy_lines(b"") == []
    assert up.policy_lines(RoutingPolicy(version=3).SerializeToString()) == []
    _, said, undo = up.policy_lines(RoutingPolicy(version=3, latency_below_ms=80, quota=200).SerializeToString())
    assert said == "Operators' policy in force: latency_below_ms=80 quota=200"
    assert undo.endswith("policy reset --all")
    assert "is damaged: " in up.policy_lines(b"\xff\xff")[1]

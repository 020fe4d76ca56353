"""The verdicts on a day are left where metrics find them, whether or not it is committed."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from batch_job.checks.gate import GateFailed
from batch_job.progress import Stopwatch
from batch_job.run_record import Findings, Outcome, RunRecord, State, Verdict
from batch_job.steps import figures, score
from shared_model.redis_store import keys
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, message, planned, write_day


@pytest.fixture
def run(state: StateSettings, client: "redis.Redis") -> RunRecord:
    write_day(state, [message(0, "hello")])
    return planned(state, client)


def found(outcome: Outcome) -> Findings:
    return Findings(1, {"yes": 1}, (1,), verdicts=(Verdict("drift", outcome, 1.0, "at most 0", "it moved"),))


def told(client: "redis.Redis") -> Any:
    return json.loads(client.get(keys.last_verdicts()) or "null")


def judge(monkeypatch: pytest.MonkeyPatch, client: "redis.Redis", run: RunRecord, findings: Findings) -> Findings:
    def examined(*_: object) -> Findings:
        if findings.verdicts[0].refuses:
            raise GateFailed(findings, "it moved")
        return findings

    monkeypatch.setattr(score, "examine", examined)
    attempt: Any = SimpleNamespace(run=run, options=None, stopwatch=Stopwatch())
    context: Any = SimpleNamespace(client=client, path=Path())
    written: Any = None
    return score._judge(context, attempt, written, ())


def test_the_verdicts_on_a_day_are_told_also_where_one_refuses_it(
    monkeypatch: pytest.MonkeyPatch, client: "redis.Redis", run: RunRecord
) -> None:
    judge(monkeypatch, client, run, found(Outcome.WARN))
    assert told(client) == {"ds": DAY, "outcomes": {"drift": "warn"}}
    with pytest.raises(GateFailed):
        judge(monkeypatch, client, run, found(Outcome.FAIL))
    assert told(client) == {"ds": DAY, "outcomes": {"drift": "fail"}}


def test_a_day_is_judged_where_redis_does_not_answer(capsys: pytest.CaptureFixture[str], run: RunRecord) -> None:
    figures.tell_verdicts(redis.Redis(port=1), run, found(Outcome.OK))
    assert f"the verdicts on ds={DAY} are in no metric: " in capsys.readouterr().err


def listed(client: "redis.Redis") -> list[Any]:
    return [json.loads(it) for it in client.lrange(keys.recent_runs(), 0, -1)]


def test_the_board_lists_each_run_once_with_its_newest_status(client: "redis.Redis", run: RunRecord) -> None:
    client.lpush(keys.recent_runs(), json.dumps({"ds": "2025-12-31", "run_id": "of an earlier version"}))
    refused = replace(run, state=State.REFUSED, findings=replace(found(Outcome.FAIL), quarantined={"no id": 2}))
    figures.tell_state(client, refused)
    before = listed(client)
    figures.tell_state(client, refused)
    assert listed(client) == before
    assert [(it["run_id"], it.get("state"), it.get("quarantined")) for it in before] == [
        (run.run_id, "refused", 2),
        ("of an earlier version", None, None),
    ]
    figures.tell_state(client, replace(run, state=State.PUBLISHED))
    other = replace(run, run_id="other", state=State.FAILED)
    figures.tell_state(client, other)
    told = [(it["run_id"], it.get("state")) for it in listed(client)]
    assert told == [("other", "failed"), (run.run_id, "published"), ("of an earlier version", None)]
    for number in range(30):
        figures.tell_state(client, replace(run, run_id=f"{number}"))
    assert [it["run_id"] for it in listed(client)] == [f"{number}" for number in range(29, 9, -1)]


def test_a_run_is_reported_where_redis_does_not_answer(capsys: pytest.CaptureFixture[str], run: RunRecord) -> None:
    figures.tell_state(redis.Redis(port=1), run)
    assert f"run {run.run_id} of ds={DAY} is not on the SLA board: " in capsys.readouterr().err

"""A refused run waits for a person: what accepting and rejecting do to table and record, and what forbids it."""

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
import redis
from deltalake import DeltaTable

from batch_job import __main__ as commands
from batch_job import run_record
from batch_job.checks import gate
from batch_job.launch import spark_submit
from batch_job.run_record import Approval, Findings, Outcome, RunRecord, State, Verdict
from batch_job.settings import NightlySettings
from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport, Target, write_file
from batch_job.steps.commit import commit_staged
from batch_job.steps.context import StepContext
from batch_job.tables import table
from batch_job.tables.fence import Fence
from batch_job.tables.staged import Staged
from shared_model.redis_store import keys
from shared_model.settings import DeferredSettings, StateSettings
from tests.batch_job.conftest import DAY, NEXT_DAY, message, planned, write_day
from tests.batch_job.shards import written

ROWS = 3


def failed(*gates: str) -> tuple[Verdict, ...]:
    return tuple(Verdict(name, Outcome.FAIL, 1.0, "at most 0", f"{name} moved") for name in gates)


@pytest.fixture
def path(
    state: StateSettings, client: "redis.Redis", environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The record of a run that the labels gate refused, after a committed day; steps run in this process."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    written.commit(state.scores_table, DAY, ["yes", "no"])
    write_day(state, [message(number, "hello") for number in range(ROWS)], NEXT_DAY)
    run = planned(state, client, NEXT_DAY)
    token = Fence.take(client, NEXT_DAY, -1).token
    target = Target(str(state.scores_table), NEXT_DAY, "plan", token)
    rows = written.batch(["hello"] * ROWS, ["perhaps"] * ROWS)
    report = FileReport(*write_file(target, schemas.SCORES, [rows]), fingerprint="plan", precision="bf16")
    facts = {"tandem.ds": NEXT_DAY, "tandem.attempt": str(token), "tandem.agreement": "0.990000"}
    staged = Staged(target, (report,), {}, None, facts, {"score": 2.0}, 1).write()
    findings = Findings(ROWS, {"perhaps": ROWS}, (ROWS,), before=DAY, labels_before={"yes": 1, "no": 1})
    own = state.runs_dir / NEXT_DAY / "run.json"
    refused = replace(run, state=State.REFUSED, token=token, problem="refused", staged=staged)
    run_record.write(own, replace(refused, findings=replace(findings, verdicts=failed(gate.LABELS))))
    return own


def step(name: str, *flags: str) -> int:
    return commands.main([name, "--ds", NEXT_DAY, *flags])


def accept(*flags: str) -> int:
    return step("commit", "--accept", "labels", "--by", "ada", *flags)


def days(state: StateSettings) -> dict[str, int]:
    """Committed day → rows."""
    rows = DeltaTable(str(state.scores_table)).to_pyarrow_table(columns=["ds"])["ds"].to_pylist()
    return {ds: rows.count(ds) for ds in sorted(set(rows))}


def test_the_scores_that_wait_are_committed_with_who_when_and_why(
    path: Path, state: StateSettings, client: "redis.Redis", capsys: pytest.CaptureFixture[str]
) -> None:
    assert accept("--comment", "a new card\nis out") == 0
    assert days(state) == {DAY: 2, NEXT_DAY: ROWS}
    run = run_record.read(path)
    assert run.approval
    assert (run.state, run.staged, run.problem) == (State.COMMITTED, "", "")
    assert (run.approval.by, run.approval.comment) == ("ada", "a new card is out")
    assert run.scoring
    assert (run.scoring.rows, run.scoring.token, run.scoring.precision) == (ROWS, run.token, "bf16")
    assert run.findings
    assert [it.accepted for it in run.findings.verdicts] == [True]
    told = json.loads(client.get(keys.last_verdicts()) or "{}")
    assert told == {"ds": NEXT_DAY, "outcomes": {"labels": "accepted"}}
    facts = table.commit_facts(DeltaTable(str(state.scores_table)), NEXT_DAY, run.token)
    assert facts["tandem.approved_by"] == "ada"
    assert facts["tandem.approved_at"] == run.approval.at
    assert (facts["tandem.approval_comment"], facts["tandem.accepted"]) == ("a new card is out", "labels")
    # Those of the attempt, too: a later day is compared with them.
    assert facts["tandem.agreement"] == "0.990000"
    said = f"by ada at {run.approval.at}: a new card is out"
    assert said in (path.with_suffix("") / "report.html").read_text()
    assert step("report") == 0
    assert f"accepted    {said}" in capsys.readouterr().out
    assert not list(state.scores_table.rglob("*.staged"))


def test_accepting_again_changes_nothing(path: Path, state: StateSettings) -> None:
    assert accept() == 0
    version = DeltaTable(str(state.scores_table)).version()
    assert step("commit", "--accept", "labels", "--by", "bob") == 0
    assert DeltaTable(str(state.scores_table)).version() == version
    approval = run_record.read(path).approval
    assert approval
    assert approval.by == "ada"


def test_a_step_that_died_after_its_commit_is_finished_by_the_next(path: Path, state: StateSettings) -> None:
    before = path.read_bytes()
    assert accept() == 0
    version = DeltaTable(str(state.scores_table)).version()
    path.write_bytes(before)
    assert step("commit", "--accept", "labels", "--by", "bob") == 0
    run = run_record.read(path)
    assert run.approval
    assert run.scoring
    assert (run.state, run.approval.by, run.scoring.rows) == (State.COMMITTED, "ada", ROWS)
    assert DeltaTable(str(state.scores_table)).version() == version


def test_of_two_who_accept_at_once_one_commits_and_is_recorded(
    path: Path, state: StateSettings, client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    run, together = run_record.read(path), Barrier(2)
    context = StepContext(path, state, NightlySettings(), DeferredSettings(), state.redis_url, client)
    replace_partition = table.replace_partition

    def at_once(*arguments: object) -> int:
        together.wait(30)
        return replace_partition(*arguments)  # type: ignore[arg-type]

    def accepted_by(name: str) -> RunRecord:
        assert run.findings
        return commit_staged(context, run, run.findings, Approval(name, "now"))

    monkeypatch.setattr(table, "replace_partition", at_once)
    with ThreadPoolExecutor(2) as both:
        done = list(both.map(accepted_by, ["ada", "bob"]))
    facts = table.commit_facts(DeltaTable(str(state.scores_table)), NEXT_DAY, run.token)
    assert {it.approval.by for it in done if it.approval} == {facts["tandem.approved_by"]}
    assert DeltaTable(str(state.scores_table)).version() == 2


def unaccepted_gate(path: Path, state: StateSettings, client: "redis.Redis") -> None:
    run = run_record.read(path)
    assert run.findings
    verdicts = failed(gate.LABELS, gate.CLEAR)
    run_record.write(path, replace(run, findings=replace(run.findings, verdicts=verdicts)))


def newer_attempt(path: Path, state: StateSettings, client: "redis.Redis") -> None:
    Fence.take(client, NEXT_DAY, -1)


def newer_commit(path: Path, state: StateSettings, client: "redis.Redis") -> None:
    """Redis has lost its memory: the table alone knows."""
    written.commit(state.scores_table, NEXT_DAY, ["yes"], token=run_record.read(path).token + 1)


def changed_input(path: Path, state: StateSettings, client: "redis.Redis") -> None:
    write_day(state, [message(0, "another text")], NEXT_DAY)


def lost_file(path: Path, state: StateSettings, client: "redis.Redis") -> None:
    [file] = (state.scores_table / f"ds={NEXT_DAY}").rglob("*.parquet")
    file.unlink()


def lost_list(path: Path, state: StateSettings, client: "redis.Redis") -> None:
    (state.scores_table / run_record.read(path).staged).write_text("{}")


@pytest.mark.parametrize(
    ("happens", "code", "line"),
    [
        (unaccepted_gate, 1, r"refused by the gate, nothing committed: agreement: .* --accept agreement`"),
        (newer_attempt, 3, r"stale: attempt 2 at ds=2026-01-15 has begun since attempt 1"),
        (newer_commit, 3, r"stale: attempt 2 at ds=2026-01-15 is committed, this is attempt 1"),
        (changed_input, 2, r"messages\.jsonl changed after the run was planned"),
        (lost_file, 2, r"1 of 1 files that waited for a person are gone or changed, .*; score ds=2026-01-15 again"),
        (lost_list, 2, r"which lists the scores that wait for a person, cannot be read"),
    ],
)
def test_what_has_changed_meanwhile_forbids_the_commit_with_its_reason(
    path: Path,
    state: StateSettings,
    client: "redis.Redis",
    capsys: pytest.CaptureFixture[str],
    happens: Callable[[Path, StateSettings, "redis.Redis"], None],
    code: int,
    line: str,
) -> None:
    happens(path, state, client)
    before = days(state)
    assert accept() == code
    [said] = [it for it in capsys.readouterr().err.splitlines() if it.startswith("batch_job commit: ")]
    assert re.search(line, said)
    assert days(state) == before
    assert run_record.read(path).approval is None


def test_an_attempt_that_begins_just_before_the_commit_forbids_it(
    path: Path,
    state: StateSettings,
    client: "redis.Redis",
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    replace_partition = table.replace_partition

    def begun_meanwhile(*arguments: object) -> int:
        newer_attempt(path, state, client)
        return replace_partition(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(table, "replace_partition", begun_meanwhile)
    assert accept() == 3
    assert "attempt 2 at ds=2026-01-15 has begun, this is attempt 1" in capsys.readouterr().err
    assert days(state) == {DAY: 2}


def test_scores_of_a_release_that_was_revoked_meanwhile_are_not_committed(
    path: Path, state: StateSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEM_REVOKED", run_record.read(path).release)
    assert accept() == 2
    assert "is revoked by TANDEM_REVOKED" in capsys.readouterr().err
    assert days(state) == {DAY: 2}
    monkeypatch.delenv("TANDEM_REVOKED")
    # A commit that failed may be tried again while the scores are there.
    assert accept() == 0


@pytest.mark.parametrize(
    ("flags", "verdict"),
    [
        (["--by", "ada", "--comment", "broken\nexport"], "rejected by ada (broken export)"),
        (["--expired"], "expired"),
    ],
)
def test_a_run_that_is_rejected_stays_refused_by_that_name(
    path: Path, state: StateSettings, capsys: pytest.CaptureFixture[str], flags: list[str], verdict: str
) -> None:
    assert step("reject", *flags) == 0
    line = f"ds={NEXT_DAY}: {verdict}; nothing committed: labels: labels moved (at most 0)"
    assert line in capsys.readouterr().out
    run = run_record.read(path)
    assert (run.state, run.problem, run.staged) == (State.REFUSED, line, "")
    assert verdict in (path.with_suffix("") / "report.html").read_text()
    assert not list(state.scores_table.rglob("*.staged"))
    assert (step("judge"), step("report"), accept(), step("reject", "--by", "bob")) == (1, 1, 2, 2)
    assert f"waits for no person; it is refused: {verdict}" in capsys.readouterr().err
    assert days(state) == {DAY: 2}


def test_judge_asks_with_the_figures_and_the_report(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        step("judge", "--json")
    assert ended.value.code == spark_submit.WAITING
    asked = json.loads(capsys.readouterr().out)
    assert asked["subject"] == f"ds={NEXT_DAY}: commit the scores that labels refused?"
    assert asked["gates"] == [gate.LABELS]
    page = f"{path.with_suffix('')}/report.html"
    for said in ("- **labels**: labels moved", "| perhaps | 0.0% | 100.0% |", "- 3 rows scored", f"- report: {page}"):
        assert said in asked["body"].replace("\\", "")
    assert accept() == 0
    assert step("judge") == 0
    assert f"ds={NEXT_DAY}: committed" in capsys.readouterr().out

"""The `commit` step: a person accepts what a gate refused, and the scores that wait become the day's. No JVM."""

import argparse
import getpass
from dataclasses import replace
from datetime import UTC, datetime

from batch_job import lookup, run_record
from batch_job.checks import gate
from batch_job.checks.gate import GateFailed
from batch_job.identity import model_of
from batch_job.progress import log
from batch_job.run_record import Approval, Findings, RunRecord, Scoring, State
from batch_job.steps import figures
from batch_job.steps.context import StepContext, open_context, recorded
from batch_job.steps.unchanged import already_committed, refuse_changed
from batch_job.steps.waiting import findings_of
from batch_job.tables import committing, staged, table
from batch_job.tables.fence import Fence
from shared_model.releases.store import Store
from shared_model.settings import StateSettings

#: Of a commit: who accepted which gates, when, and with which words.
_BY, _AT, _COMMENT, _ACCEPTED = "tandem.approved_by", "tandem.approved_at", "tandem.approval_comment", "tandem.accepted"


def run(args: argparse.Namespace, state: StateSettings) -> None:
    path = lookup.find(args.record, args.ds, state)
    run = lookup.open_for(path, args.ds)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    approval = Approval(args.by or getpass.getuser(), at, " ".join(args.comment.split()))
    if run.approval is None:
        findings = accepted_findings(run, tuple(args.accept))
        with open_context(path, run.input.identity) as context, recorded(context):
            run = commit_staged(context, run, findings, approval)
    done = run.approval or approval
    rows = run.scoring.rows if run.scoring else 0
    print(f"ds={run.ds}: {rows:,} rows committed, accepted by {done.by} at {done.at}")


def accepted_findings(run: RunRecord, accepted: tuple[str, ...]) -> Findings:
    """The findings of a run that waits, once a person has accepted these gates.

    Raises: JobError where nothing waits; GateFailed where another gate refuses as well.
    """
    found = findings_of(run)
    findings = replace(found, verdicts=gate.accept(found.verdicts, accepted))
    if problem := gate.refusal(run.ds, findings.verdicts):
        raise GateFailed(findings, problem)
    return findings


def commit_staged(context: StepContext, run: RunRecord, findings: Findings, approval: Approval) -> RunRecord:
    """Commit the scores that wait, as `score` would have. Of two persons who accept, the first is recorded.

    Raises: Stale once a newer attempt at the day has begun or is committed; JobError where input or files have changed;
    ReleaseError where the release was withdrawn.
    """
    scoring = _committed_by(context, run) or _commit(context, run, findings, approval)
    facts = table.commit_facts(table.open_table(context.tables.scores, table.SCORES), run.ds, run.token)
    first = Approval(facts[_BY], facts[_AT], facts[_COMMENT])
    run = replace(run, state=State.COMMITTED, findings=findings, scoring=scoring, staged="", approval=first, problem="")
    run_record.write(context.path, run)
    figures.tell_verdicts(context.client, run, findings)
    log(f"ds={run.ds}: {scoring.rows:,} rows committed, accepted by {first.by}")
    return run


def _commit(context: StepContext, run: RunRecord, findings: Findings, approval: Approval) -> Scoring:
    refuse_changed(context, run)
    Store.from_settings(context.state).open(run.release)
    waiting = staged.read(context.tables.scores, run.staged)
    waiting.check_there()
    accepted = ",".join(verdict.gate for verdict in findings.verdicts if verdict.accepted)
    facts = {_BY: approval.by, _AT: approval.at, _COMMENT: approval.comment, _ACCEPTED: accepted}
    fence = Fence(context.client, run.ds, run.token, model_of(run.input.identity))
    return committing.commit(waiting, str(context.tables.quarantine), fence.check, facts)


def _committed_by(context: StepContext, run: RunRecord) -> Scoring | None:
    """The scores, if an earlier try at this step committed them and was killed before it could say so."""
    held = table.committed(table.open_table(context.tables.scores, table.SCORES), run.ds)
    if held is None or held.token != run.token:
        return None
    return already_committed(context.tables, run, held.fingerprint)

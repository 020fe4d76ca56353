"""A run in plain text: a summary for terminals, and the sentences that the page and the logs share with it."""

from collections.abc import Mapping

from batch_job import identity
from batch_job.run_record import Approval, Input, RunRecord, Scoring, State, Verdict


def status(run: RunRecord) -> str:
    """The run's status, and of a committed one whether it is live."""
    done = run.publication
    if run.state is State.PUBLISHED:
        return f"{run.state}, live as epoch {done.epoch}" if done else str(run.state)
    if run.state in (State.COMMITTED, State.UNCHANGED):
        return f"{run.state}, {'not live' if done else 'not published'}"
    return f"{run.state}, waits for a person" if run.waits else str(run.state)


def summary(run: RunRecord) -> str:
    lines = [
        f"nightly run {run.run_id} of ds={run.ds}: {status(run)}",
        f"  release     {run.release}",
        f"  input       {source(run.input)}; {run.input.identity}",
    ]
    if run.problem:
        lines.append(f"  problem     {run.problem}")
    if run.scoring:
        lines += _scoring(run.scoring)
    if run.findings:
        lines += map(_verdict, run.findings.verdicts)
    if run.approval:
        lines.append(f"  accepted    {accepted(run.approval)}")
    lines.append(f"  deferred    {run.drained:,} requests answered")
    lines.append(f"  online      {publication(run)}")
    return "\n".join(lines)


def accepted(approval: Approval) -> str:
    """The person who accepted a refusal of the gate, when, and with which words."""
    return f"by {approval.by} at {approval.at}{f': {approval.comment}' if approval.comment else ''}"


def source(planned: Input) -> str:
    """The run's input in words."""
    return f"{planned.lines:,} lines in {len(planned.files)} files of {planned.folder}"


def _scoring(scoring: Scoring) -> list[str]:
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(scoring.quarantined.items()))
    lines = [
        f"  committed   {scoring.rows:,} rows in table version {scoring.table_version}, attempt {scoring.token}",
        f"  quarantined {sum(scoring.quarantined.values()):,} lines{f' ({reasons})' if reasons else ''}",
    ]
    if scoring.units_resumed or scoring.rows_reused:
        lines.append(f"  taken over  {spared(scoring)}")
    if scoring.computed:
        run_for = scoring.rows - scoring.rows_taken_over
        said = f"{tokens(scoring)}, {scoring.padding_share:.1%} padding, {scoring.distinct:,} rows run for {run_for:,}"
        lines.append(f"  speed       {speed(scoring)}, {said}")
    else:
        lines.append(f"  speed       {speed(scoring)}")
    if scoring.computed and (said := busy(scoring)):
        lines.append(f"  devices     {said}")
    if scoring.seconds:
        stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in scoring.seconds.items())
        lines += [
            f"  seconds     {stages}",
            *(f"  worker      pid {it.pid}: {it.rows:,} rows" for it in scoring.workers),
        ]
    return lines


def speed(scoring: Scoring) -> str:
    """Rows per second in words; the reason where this run scored nothing."""
    if scoring.computed:
        return f"{scoring.rows_per_second:,.0f} rows/s in {scoring.precision}"
    if not scoring.seconds:
        return "nothing was scored: an earlier run had committed the day"
    if scoring.units_resumed or scoring.rows_reused:
        return f"nothing was scored: all {scoring.rows:,} rows were taken over"
    return "nothing was scored: the day holds no row that could be"


def spared(scoring: Scoring) -> str:
    """The rows that this run did not have to score, in words."""
    said = []
    if scoring.units_resumed:
        rows = f"{scoring.rows_taken_over:,} of {scoring.rows:,} rows"
        said.append(f"{rows} from earlier attempts, {scoring.units_resumed:,} of {scoring.units:,} units")
    if scoring.rows_reused:
        said.append(f"{scoring.rows_reused:,} rows with the scores that were committed before")
    return "; ".join(said) or "nothing"


def tokens(scoring: Scoring) -> str:
    """The number of tokens, and their rate while there was something to score."""
    return f"{scoring.tokens:,} tokens, {scoring.tokens_per_second:,.0f} tokens/s while scoring"


def busy(scoring: Scoring) -> str:
    """The share of the time in which the devices computed, in words; empty where the record does not have it."""
    share = scoring.busy_share
    return "" if share is None else f"busy {share:.1%} of the time of scoring, in {scoring.slots} slots"


def by_frequency(reasons: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(reasons.items(), key=lambda it: (-it[1], it[0]))


def counts(reasons: Mapping[str, int]) -> str:
    """Lines by the reason of their quarantine, the most frequent first."""
    return ", ".join(f"{reason} {count:,}" for reason, count in by_frequency(reasons))


def facts(run: RunRecord) -> dict[str, object]:
    """The facts of a run for programs that wait for its scores, and its note. drift: the label shift (PSI)."""
    scoring, findings = run.scoring, run.findings
    shifts = [it.value for it in findings.verdicts if it.gate == "labels"] if findings else []
    return {
        "day": run.ds,
        "status": str(run.state),
        "release": run.release,
        "epoch": run.publication.epoch if run.publication else "",
        "rows": scoring.rows if scoring else 0,
        "rows_per_second": scoring.rows_per_second if scoring else 0.0,
        "quarantined": sum(scoring.quarantined.values()) if scoring else 0,
        "drift": shifts[0] if shifts else None,
        "note": f"{run.ds}: {_of_model(run)}{verdict(run)}",
    }


def _of_model(run: RunRecord) -> str:
    """Nothing where it is the default one."""
    model = identity.model_of(run.input.identity)
    return f"model {model}: " if model else ""


def verdict(run: RunRecord) -> str:
    """The outcome of a run in one line."""
    if run.problem:
        return f"{status(run)}: {run.problem.removeprefix(f'ds={run.ds}: ')}"
    if not run.scoring:
        return status(run)
    scoring = run.scoring
    shown = f"{status(run)}; {scoring.rows:,} rows, {speed(scoring)}; {sum(scoring.quarantined.values()):,} quarantined"
    accepted = f"; accepted by {run.approval.by}" if run.approval else ""
    return f"{shown}{accepted}"


def _verdict(verdict: Verdict) -> str:
    accepted = ", accepted" if verdict.accepted else ""
    return f"  gate        {verdict.gate}: {verdict.outcome}{accepted}: {verdict.line}"


def publication(run: RunRecord) -> str:
    """Whether the run's scores answer online, in one line: live, or not live and why."""
    done = run.publication
    if done is None:
        return "not published"
    if not done.live:
        # Earlier versions gave no reason for a day without rows.
        return f"not live: {done.why or 'the day holds no rows'}"
    if not done.bytes:
        return f"live already as epoch {done.epoch}, with {done.keys:,} keys; nothing to do"
    bound = f" of at most {done.bound / 1e6:,g} MB" if done.bound else ""
    line = f"live: {done.keys:,} keys as epoch {done.epoch}, {done.bytes / 1e6:,.1f} MB{bound}"
    if not done.left_out:
        return line
    return (
        f"{line}; {done.left_out:,} rarer texts left out for memory, those in it cover {done.covered:.1%} of the rows"
    )

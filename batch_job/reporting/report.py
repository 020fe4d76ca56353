"""The `report` step: a run in lines that a person reads, and whether its counts add up."""

from batch_job.record import Input, RunRecord, Scoring, State, Verdict, Worker


def summary(run: RunRecord) -> str:
    lines = [
        f"nightly run {run.run_id} of ds={run.ds}: {run.state}",
        f"  release     {run.release}",
        f"  input       {run.input.lines:,} lines in {len(run.input.files)} files of {run.input.folder}",
    ]
    if missing := unchecked(run.input):
        lines.append(f"  unchecked   {missing}")
    if run.problem:
        lines.append(f"  problem     {run.problem}")
    if run.scoring:
        lines += _scoring(run.scoring)
    if run.findings:
        lines += map(_verdict, run.findings.verdicts)
    lines.append(f"  deferred    {run.drained:,} requests answered")
    lines.append(f"  published   {publication(run)}")
    return "\n".join(lines)


def unchecked(source: Input) -> str:
    """How many input files nothing would tell of damage to, in one line; empty when there are none."""
    count = sum(file.unchecked for file in source.files)
    files = len(source.files)
    return f"{count} of {files} input files have no page checksums: damage to them may go unnoticed" if count else ""


def discrepancy(run: RunRecord) -> str:
    """Why the run is not as it should be, in one line; empty when it is."""
    if run.scoring is None:
        return f"run {run.run_id} of ds={run.ds} is {run.state}: nothing is committed"
    set_aside = sum(run.scoring.quarantined.values())
    if run.scoring.rows + set_aside != run.input.lines:
        return (
            f"ds={run.ds}: {run.input.lines} lines in, but {run.scoring.rows} scored and {set_aside} quarantined; "
            "score the day again with --force"
        )
    if run.state is not State.PUBLISHED:
        return f"run {run.run_id} of ds={run.ds} is {run.state}: it was not published"
    return ""


def _scoring(scoring: Scoring) -> list[str]:
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(scoring.quarantined.items()))
    lines = [
        f"  committed   {scoring.rows:,} rows in table version {scoring.table_version}, attempt {scoring.token}",
        f"  quarantined {sum(scoring.quarantined.values()):,} lines{f' ({reasons})' if reasons else ''}",
    ]
    if scoring.units_resumed or scoring.rows_reused:
        lines.append(f"  not again   {spared(scoring)}")
    if scoring.seconds:
        stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in scoring.seconds.items())
        lines += [
            f"  speed       {scoring.rows_per_second:,.0f} rows/s in {scoring.precision}, {tokens(scoring)}, "
            f"{scoring.padding_share:.1%} padding, {scoring.distinct:,} rows run for {scoring.rows:,}",
            *([f"  devices     {said}"] if (said := busy(scoring)) else []),
            f"  seconds     {stages}",
            *map(_worker, scoring.workers),
        ]
    else:
        lines.append("  speed       nothing was computed: the partition stood already")
    return lines


def spared(scoring: Scoring) -> str:
    """What need not be computed again, in words."""
    return (
        f"{scoring.units_resumed:,} of {scoring.units:,} units taken over from earlier attempts, "
        f"{scoring.rows_reused:,} rows with the scores of the partition before"
    )


def tokens(scoring: Scoring) -> str:
    """How many were run, and how fast while there was something to score."""
    return f"{scoring.tokens:,} tokens, {scoring.tokens_per_second:,.0f} tokens/s while scoring"


def busy(scoring: Scoring) -> str:
    """How much of their time the devices computed, in words; empty where the record does not say."""
    share = scoring.busy_share
    return "" if share is None else f"busy {share:.1%} of the time of scoring, in {scoring.slots} slots"


def _verdict(verdict: Verdict) -> str:
    accepted = ", accepted" if verdict.accepted else ""
    return f"  gate        {verdict.gate}: {verdict.outcome}{accepted}: {verdict.line}"


def _worker(worker: Worker) -> str:
    """One line; a width that differs from what was asked for costs speed, here or to whoever shares the host."""
    used = f"used {worker.threads}" if worker.threads else "used unknown"
    priority = ", at idle priority" if worker.idle else ""
    return f"  worker      pid {worker.pid}: asked for {worker.width} threads, {used}; {worker.rows:,} rows{priority}"


def publication(run: RunRecord) -> str:
    """What became of the epoch, in one line."""
    done = run.publication
    if done is None:
        return "not published"
    if not done.epoch:
        return "nothing to publish: the partition holds no rows"
    if not done.live:
        return f"not epoch {done.epoch}: {done.why}"
    if not done.bytes:
        return f"epoch {done.epoch} was live already, with {done.keys:,} keys; nothing to do"
    bound = f" of at most {done.bound / 1e6:,g} MB" if done.bound else ""
    line = f"{done.keys:,} keys as epoch {done.epoch}, {done.bytes / 1e6:,.1f} MB{bound}"
    if not done.left_out:
        return line
    return (
        f"{line}; {done.left_out:,} rarer texts left out for memory, those in it cover {done.covered:.1%} of the rows"
    )

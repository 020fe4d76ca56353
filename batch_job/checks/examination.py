"""Between writing and committing: look at what was written, hold it against the day before, let the gate judge it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame

from batch_job.checks import agreement, gate, history, reading_back
from batch_job.checks.pace import pace
from batch_job.run_record import Findings, QuarantinedLine, RunRecord
from batch_job.scoring.options import ScoringOptions
from batch_job.shards.shard_files import FileReport, Target
from shared_model.objects import Location, located


@dataclass(frozen=True)
class Written:
    """Files that an attempt has written to the scores table's folder, `target`, and not yet committed.

    to_commit: the same rows in the files that the commit will name; `files` are the shards.
    quarantined: reason → lines, and examples of them. messages: columns id, text_hash, text and pair of all that were
    to be scored, cheap to read again.
    """

    target: Target
    files: Sequence[FileReport]
    to_commit: Sequence[FileReport]
    quarantined: Mapping[str, int]
    messages: DataFrame
    examples: tuple[QuarantinedLine, ...] = ()
    quarantine_version: int | None = None

    @property
    def table(self) -> Location:
        return located(self.target.table)


def examine(run: RunRecord, written: Written, options: ScoringOptions, accepted: Collection[str] = ()) -> Findings:
    """Findings of the gate. `accepted`: gates whose failure a person lets pass.

    Raises: GateFailed, with the findings, when the partition must not become visible.
    """
    release = options.store().open(run.release)
    spark = written.messages.sparkSession
    held = reading_back.read(spark, written.table, written.to_commit, agreement.SAMPLE)
    seconds, rates = pace((file.began, file.ended, file.rows) for file in written.files if not file.adopted)
    count = partial(reading_back.read_labels, spark)
    before = history.last_day(written.table, run.ds, run.input.identity, count)
    agreed = agreement.measure(written.messages, held.sample, release, options, written.target)
    reported, quarantined = sum(file.rows for file in written.files), sum(written.quarantined.values())
    verdicts = [
        gate.counts(run.input.lines, reported, held.rows, quarantined),
        gate.finite(held.rows, held.not_finite),
        gate.labels(held.labels, before.labels, release.output.names, before.ds),
        gate.clear_agreement(agreed),
        gate.agreement_drop(agreed, before.agreement, before.ds),
    ]
    findings = Findings(
        rows=held.rows,
        labels=held.labels,
        lengths=held.lengths,
        quarantined=dict(written.quarantined),
        quarantined_examples=written.examples,
        before=before.ds,
        labels_before=before.labels,
        agreement=agreed,
        pace=rates,
        pace_seconds=seconds,
        verdicts=gate.accept(verdicts, accepted),
    )
    if problem := gate.refusal(run.ds, findings.verdicts):
        raise gate.GateFailed(findings, problem)
    return findings

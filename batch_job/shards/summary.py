"""The reports of an attempt's files, added up for the run record."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from batch_job.run_record import Scoring, Worker
from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport, Target


def scoring(
    target: Target,
    version: int,
    files: Sequence[FileReport],
    reasons: Mapping[str, int],
    quarantine_version: int | None,
    seconds: Mapping[str, float],
    slots: int,
) -> Scoring:
    """`target`: what was committed; `version`: of the table, since then. `seconds` per stage of this attempt;
    `slots`: tasks that scored at once.

    Rows include adopted shards; speed, tokens and workers are this attempt's own.
    """
    own = [file for file in files if not file.adopted]
    tokens, padded = sum(file.tokens for file in own), sum(file.padded_tokens for file in own)
    began = min((file.began for file in own if file.began), default=0.0)
    # Of all workers together.
    stages = ("tokenised", "waited", "ran", "device_busy", "wrote")
    in_workers = {f"workers {stage.replace('_', ' ')}": sum(getattr(file, stage) for file in own) for stage in stages}
    return Scoring(
        token=target.token,
        plan_id=target.fingerprint,
        table_version=version,
        rows=sum(file.rows for file in files),
        quarantined=reasons,
        quarantine_version=quarantine_version,
        precision=files[0].precision,
        seconds={name: round(value, 3) for name, value in {**seconds, **in_workers}.items()},
        rows_per_second=round(sum(file.rows for file in own) / sum(seconds.values()), 1),
        tokens=tokens,
        padding_share=round(1 - tokens / padded, 4) if padded else 0.0,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        distinct=sum(file.distinct for file in own),
        workers=_workers(own),
        # Of the first engine that got texts.
        began_at=datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds") if began else "",
        content=schemas.add_contents(file.content for file in files),
        units=len(files),
        units_resumed=len(files) - len(own),
        rows_reused=sum(file.reused for file in own),
        slots=slots,
    )


def _workers(files: Sequence[FileReport]) -> tuple[Worker, ...]:
    """The workers that wrote rows. A process id that occurs on two hosts counts as one worker."""
    rows_by_pid = Counter[int]()
    for file in files:
        if file.rows:
            rows_by_pid[file.pid] += file.rows
    return tuple(Worker(pid, rows) for pid, rows in sorted(rows_by_pid.items()))

"""What the demo did, for a person to read; and whether all of it happened."""

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from batch_job.reporting import plain_text
from batch_job.run_record import RunRecord
from realtime_service.settings import Lane
from shared_model.types import ServingPath
from tandem_stack.airflow_api import RunState
from tandem_stack.calls import EXAMPLE, Outcome
from tandem_stack.separate import Reached

#: The host that the default rates are for.
TARGET_HOST = "a 4 x 8-core host"
#: A path counts as seen when this share of the calls meant for it took it: a busy machine refuses a few.
SEEN_SHARE = 0.5
#: Tasks of a night that a gate refused; others skip them.
_IF_REFUSED = ("approve", "commit")


@dataclass(frozen=True)
class Nightly:
    """One day's run: what Airflow says, and what the run itself wrote down (None when it wrote nothing)."""

    run: RunState
    record: RunRecord | None


@dataclass(frozen=True)
class Took:
    """What the demo took: its seconds, those of installing included, and memory."""

    seconds: float
    installing: float
    peak_bytes: int

    def text(self) -> str:
        installing = f" ({self.installing:.0f} s of it to install)" if self.installing >= 1 else ""
        return f"Whole demo: {self.seconds:.0f} s{installing}, {self.peak_bytes / 1e9:.1f} GB of memory at most"


@dataclass(frozen=True)
class Host:
    """What the service had here. `streams`: calls that its engines run at once."""

    cores: int
    streams: int

    @property
    def here(self) -> str:
        return f"{self.cores} core{'s' if self.cores > 1 else ''} here"


@dataclass(frozen=True)
class Summary:
    """`answer`: of every head to calls.EXAMPLE. `state`: where the demo keeps what it wrote; `store`: the
    URL of what machines share, empty for a folder."""

    nights: Sequence[Nightly]
    outcomes: Sequence[Outcome]
    beside: Outcome
    answer: str
    reached: Sequence[Reached]
    lanes: Sequence[Lane]
    host: Host
    airflow: str
    took: Took
    state: str
    store: str = ""

    def missing(self) -> list[str]:
        """What did not happen; empty when the demo is a success."""
        gaps = [
            f"the nightly run of {night.run.partition} ended {night.run.state}"
            for night in self.nights
            if night.run.state != "success" or not (night.record and night.record.publication)
        ]
        gaps += [
            f"{task} of {night.run.partition} was {state}"
            for night in self.nights
            for task, state in night.run.tasks.items()
            if state != "success" and not (state == "skipped" and task in _IF_REFUSED)
        ]
        if not any(night.record and night.record.approval for night in self.nights):
            gaps.append("no refused night was accepted by a person")
        seen = {outcome.path for outcome in self.outcomes if len(outcome.milliseconds) >= SEEN_SHARE * outcome.calls}
        gaps += [f"the {path} path was not seen" for path in ServingPath if path not in seen]
        astray = [reached.kind for reached in self.reached if not reached.right]
        return gaps + [f"{kind} calls did not all reach the {kind} endpoint" for kind in astray]

    def text(self) -> str:
        parts = [
            ["", "Nightly runs", *_table(_night_rows(self.nights))],
            ["", "Refused by a gate, and accepted by a person", *_accepted(self.nights)],
            ["", f"Airflow {self.airflow}", *(_tasks(night.run) for night in self.nights)],
            ["", "Calls, timed by the caller", *_table(_call_rows([*self.outcomes, self.beside]))],
            ["", "One call, one forward pass, every head", f"  {EXAMPLE}", f"  {self.answer}"],
            ["", "Through a router, to endpoints of their own", *_table(_reached_rows(self.reached))],
            ["", "Service levels in this run", *_table(_lane_rows(self.lanes, self.outcomes, self.host))],
            *([] if self.store else [["", "Read the demo's scores", *self._commands()]]),
            ["", self.took.text()],
            [f"Content of {self.store or 'the scores table'}: {', '.join(_contents(self.nights))}"],
            [f"MISSING: {gap}" for gap in self.missing()],
        ]
        return "\n".join(line for part in parts for line in part)

    def _commands(self) -> list[str]:
        """The demo has a state of its own, which commands do not find by themselves."""
        day = self.nights[-1].run.partition
        steps = (f"read --ds {day} --limit 5", f"report --ds {day}")
        return [
            f"  export TANDEM_STATE={shlex.quote(os.path.relpath(self.state))}",
            *(f"  .venv/bin/python -m batch_job {step}" for step in steps),
        ]


def _contents(nights: Iterable[Nightly]) -> Iterable[str]:
    """The hash of each day's rows: the same on a disk and behind a URL."""
    for night in nights:
        scoring = night.record.scoring if night.record else None
        yield f"{night.run.partition} {scoring.content[:16] if scoring else '-'}"


def _night_rows(nights: Iterable[Nightly]) -> list[list[str]]:
    rows = [["day", "state", "rows", "scoring rows/s", "quarantined", "precision", "table version", "published keys"]]
    for night in nights:
        scoring = night.record.scoring if night.record else None
        publication = night.record.publication if night.record else None
        if not (night.record and scoring):
            rows.append([night.run.partition, night.run.state, *["-"] * 6])
            continue
        rate = f"{scoring.scored_per_second:,.0f}" if scoring.scored_per_second else "-"
        quarantined, version = str(sum(scoring.quarantined.values())), str(scoring.table_version)
        keys = f"{publication.keys:,}" if publication else "-"
        row = [night.run.partition, night.record.state, f"{scoring.rows:,}", rate]
        rows.append([*row, quarantined, scoring.precision, version, keys])
    return rows


def _accepted(nights: Iterable[Nightly]) -> Iterable[str]:
    for record in (night.record for night in nights):
        if record and record.approval and record.findings:
            refused = "; ".join(f"{it.gate}: {it.line}" for it in record.findings.verdicts if it.accepted)
            yield from (f"  {record.ds}  {refused}", f"              accepted {plain_text.accepted(record.approval)}")


def _tasks(run: RunState) -> str:
    return f"  {run.partition}  {run.state}: " + ", ".join(f"{task} {state}" for task, state in run.tasks.items())


def _call_rows(outcomes: Iterable[Outcome]) -> list[list[str]]:
    rows = [["path", "answers", "p50 ms", "p95 ms", "answers/s", "others", "how"]]
    for outcome in outcomes:
        others = ", ".join(f"{count} {name}" for name, count in outcome.elsewhere.items())
        answers = f"{len(outcome.milliseconds)} of {outcome.calls}"
        p50, p95 = (f"{outcome.percentile(share):.1f}" for share in (0.50, 0.95))
        rows.append([outcome.path, answers, p50, p95, f"{outcome.per_second:,.0f}", others or "-", outcome.note])
    return rows


def _reached_rows(reached: Iterable[Reached]) -> list[list[str]]:
    rows = [["kind", "calls", "answered by"]]
    for one in reached:
        by = ", ".join(f"{name} {count}" for name, count in one.answered.items() if count)
        rows.append([one.kind, str(one.calls), by or "-"])
    return rows


def _lane_rows(lanes: Iterable[Lane], outcomes: Iterable[Outcome], host: Host) -> list[list[str]]:
    measured = {outcome.path: outcome for outcome in outcomes}
    rows = [["lane", "primary target", "", "secondary target", ""]]
    for lane in lanes:
        outcome = measured.get(lane.path)
        if lane.path is ServingPath.DEFERRED or outcome is None:
            continue
        p95, rate = _p95_target(lane, outcome, host), _rate_target(lane, outcome, host)
        if lane.path is ServingPath.DYNAMIC:
            in_time = f"{len(outcome.milliseconds)} of {outcome.calls} inside their own deadline"
            rows.append([lane.path, in_time, _verdict(not outcome.elsewhere), "-", ""])
        else:
            # The latency lane promises time first, the throughput lane numbers.
            first, second = (p95, rate) if lane.path is ServingPath.LATENCY else (rate, p95)
            rows.append([lane.path, *first, *second])
    return rows


def _p95_target(lane: Lane, outcome: Outcome, host: Host) -> tuple[str, str]:
    """The calls under way share the engines: below this many seconds no service can answer them."""
    bound, reached = lane.target_seconds * 1000, outcome.percentile(0.95)
    alone = 1000 * outcome.callers / outcome.engine_rate(host.streams)
    if reached > bound and alone > bound:
        target = f"target p95 <= {bound:.0f} ms is for {TARGET_HOST}"
        return f"{target}; {host.here}: {reached:.1f} ms, of which the engine takes {alone:.1f} ms", ""
    return f"p95 <= {bound:.0f} ms: {reached:.1f}", _verdict(reached <= bound)


def _rate_target(lane: Lane, outcome: Outcome, host: Host) -> tuple[str, str]:
    reached, possible = outcome.per_second, outcome.engine_rate(host.streams)
    if reached < lane.target_rate and possible < lane.target_rate:
        target, share = f"target {lane.target_rate:,.0f}/s is for {TARGET_HOST}", 100 * reached / possible
        return f"{target}; {host.here}: {reached:,.0f}/s, {share:.0f} % of what the engine can do", ""
    return f">= {lane.target_rate:,.0f}/s: {reached:,.0f}", _verdict(reached >= lane.target_rate)


def _verdict(met: bool) -> str:
    return "met" if met else "missed"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return [f"  {'  '.join(row)}".rstrip() for row in padded]

"""The `score` step for many days, inside spark-submit: one Spark application, and for each day a plan, a run record and
a commit of its own, as a nightly run makes them.

Two days are scored side by side: one uses the slots that the other leaves idle. Days are judged and committed in order,
because each is held against the day before. No day begins while a nightly run is due.
"""

import contextvars
import functools
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from batch_job import identity, lookup, run_record
from batch_job.launch import exit_codes, spark_submit
from batch_job.progress import log
from batch_job.reporting import plain_text
from batch_job.run_record import RunRecord, State
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import InputSettings
from batch_job.steps import figures
from batch_job.steps.context import StepContext, open_context, open_session, recorded
from batch_job.steps.plan import active_release, plan_run, this_runtime
from batch_job.steps.publish import publish_run
from batch_job.steps.score import score_day
from batch_job.steps.unchanged import committed_before, record_unchanged
from shared_model import settings
from shared_model.objects import Location, located
from shared_model.releases.store import Store
from shared_model.settings import StateSettings

#: Days that are scored side by side.
_AT_ONCE = 2
#: States of a run that has a result.
_DONE = (State.COMMITTED, State.UNCHANGED, State.PUBLISHED)
#: After these no other day would fare better: whatever broke is not of one day.
_ENDING = (spark_submit.UNEXPECTED, spark_submit.UNAVAILABLE)
#: Exit codes, the one that counts most first.
_WORST = (*_ENDING, spark_submit.YIELDED, 2, 3, spark_submit.REFUSED, spark_submit.NO_INPUT)
#: How a day ended that has no result.
_ENDED = {spark_submit.REFUSED: "refused", 3: "stale", spark_submit.NO_INPUT: "no messages"}
_COLUMNS = ("day", "verdict", "rows", "quarantined", "problem")


@dataclass(frozen=True)
class Verdict:
    """How a day ended, and the exit code that it would have alone. `run`: of a day with a result, at `path`."""

    ds: str
    code: int
    status: str
    problem: str = ""
    run: RunRecord | None = None
    path: Location = ""

    def cells(self) -> tuple[str, ...]:
        scoring = self.run.scoring if self.run else None
        counts = (scoring.rows, sum(scoring.quarantined.values())) if scoring else ()
        rows, quarantined = map("{:,}".format, counts) if counts else ("-", "-")
        return self.ds, self.status, rows, quarantined, self.problem or "-"


@dataclass
class Queue:
    """The days in their order, for threads that score them. Nothing is handed out after `end`, nor while `look` names a
    run that goes first."""

    days: Sequence[str]
    look: Callable[[], RunRecord | None]
    taken: int = 0
    due: RunRecord | None = None
    _ended: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> int | None:
        """The place of the next day."""
        with self._lock:
            if self._ended or self.taken == len(self.days):
                return None
            if due := self.look():
                self.due, self._ended = due, True
                return None
            self.taken += 1
            return self.taken - 1

    def end(self) -> None:
        with self._lock:
            self._ended = True


@dataclass(frozen=True)
class Days:
    """All that days have in common: `run_id` names their runs. `earlier`: by day, those that an earlier call began."""

    context: StepContext
    inputs: InputSettings
    run_id: str
    spark: SparkSession
    options: ScoringOptions
    force: bool
    earlier: Mapping[str, RunRecord]

    def score(self, queue: Queue) -> list[Verdict]:
        """The verdict of each day that was begun, in order."""
        verdicts: dict[int, Verdict] = {}
        ended = [threading.Event() for _ in queue.days]

        def work() -> None:
            while (place := queue.take()) is not None:
                turn = functools.partial(_wait_for, ended[:place])
                try:
                    verdicts[place] = self._verdict(queue.days[place], turn)
                    if verdicts[place].code in _ENDING:
                        queue.end()
                finally:
                    ended[place].set()

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="day") as pool:
            threads = [pool.submit(contextvars.copy_context().run, work) for _ in range(_AT_ONCE)]
            try:
                for thread in threads:
                    thread.result()
            finally:
                # After Ctrl-C too: days that run end as the work they wait for does.
                queue.end()
                self.spark.sparkContext.cancelAllJobs()
        return [verdicts[place] for place in sorted(verdicts)]

    def _verdict(self, ds: str, turn: Callable[[], object]) -> Verdict:
        path = located(spark_submit.record_path(ds, self.run_id))
        if (run := self.earlier.get(ds)) and run.state in _DONE:
            return Verdict(ds, 0, str(run.state), run=run, path=path)
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", ds)
        try:
            run = self._run(ds, path, turn)
        except Exception as error:  # noqa: BLE001 (a day must not stop the others; the code says what it was)
            code, problem = exit_codes.judged(error)
            if code == spark_submit.UNEXPECTED:
                traceback.print_exception(error)
            problem = problem.removeprefix("stale: ").removeprefix(f"ds={ds}: ")
            log(f"ds={ds}: {problem}")
            return Verdict(ds, code, _ENDED.get(code, "failed"), problem)
        return Verdict(ds, 0, str(run.state), run=run, path=path)

    def _run(self, ds: str, path: Location, turn: Callable[[], object]) -> RunRecord:
        """Plan, score and commit a day. Raises: Stale, GateFailed, JobError, and whatever else `score` does."""
        context = replace(self.context, path=path)
        planned = plan_run(context.state, context.client, ds, self.run_id, self.inputs, release_id=self.options.release)
        run_record.write(path, planned)
        with recorded(context):
            committed = None if self.force else committed_before(context, planned, self.options)
            if committed:
                return record_unchanged(context, planned, committed)
            return score_day(context, planned, self.spark, self.options, self.force, (), turn)


def _wait_for(earlier: Iterable[threading.Event]) -> None:
    """Of all of them: the day before may have ended early, without a turn of its own."""
    for it in earlier:
        it.wait()


def score_days(first: str, last: str, force: bool = False, publish: bool = False, name: str = "") -> int:
    """Score all days from `first` to `last`; returns the exit code. A last table has each day's verdict. A call of the
    same `name` goes on where the one before ended, with its release, also where `force` scores committed days again.

    Raises: what keeps all of them from being scored: SettingError, ReleaseError, JobError, RecordError,
    StoreUnavailable.
    """
    state, inputs = settings.load(StateSettings), settings.load(InputSettings)
    days, now = lookup.days(first, last), datetime.now(UTC)
    with open_context(state.runs_dir, identity.input_name(state, inputs)) as context:
        run_id = f"{lookup.MANY_DAYS}{name or f'{now:%Y%m%dT%H%M%SZ}'}"
        records = lookup.record_files(state.runs_dir) if name else []
        earlier = {it.day: run_record.read(it.path) for it in records if it.run_id == run_id}
        began = next((run.release for run in earlier.values()), "")
        release = began or active_release(Store.from_settings(state), context.client, inputs.nightly_model)
        queue = Queue(days, lambda: lookup.due_run(state, datetime.now(UTC)))
        with open_session(context, f"tandem {first} to {last}", release, this_runtime()) as (spark, options):
            verdicts = Days(context, inputs, run_id, spark, options, force, earlier).score(queue)
        published = _publish(context, verdicts) if publish and len(verdicts) == len(days) else ""
    left = lookup.goes_first(queue.due, len(queue.days) - queue.taken) if queue.due else ""
    print("\n".join([*table(verdicts, days), *filter(None, [published, left])]))
    codes = {verdict.code for verdict in verdicts} | ({spark_submit.YIELDED} if queue.due else set())
    return next((code for code in _WORST if code in codes), 0)


def table(verdicts: Sequence[Verdict], days: Sequence[str]) -> list[str]:
    """A line for each day, under a heading. Days that were not begun are `left`."""
    left = [Verdict(ds, 0, "left") for ds in days[len(verdicts) :]]
    cells = [_COLUMNS, *(verdict.cells() for verdict in (*verdicts, *left))]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def _publish(context: StepContext, verdicts: Sequence[Verdict]) -> str:
    """Publish the newest day with a result. Raises: JobError, StoreUnavailable."""
    newest = next((it for it in reversed(verdicts) if it.run), None)
    if newest is None or newest.run is None:
        return "nothing to publish: no day is committed"
    done = publish_run(context.state, context.nightly, context.client, newest.run)
    run_record.write(newest.path, done)
    figures.tell_state(context.client, done)
    return f"ds={done.ds} of {done.input.identity}: {plain_text.publication(done)}"

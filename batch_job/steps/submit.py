"""The `score` and `drain` steps as a person starts them: spark-submit takes the place of this process.

The look whether a day is scored already needs no JVM.
"""

import argparse
import os
import re
import sys
from datetime import UTC, datetime

from batch_job import lookup
from batch_job.identity import Tables
from batch_job.launch import spark_submit
from batch_job.progress import log
from batch_job.reporting import plain_text
from batch_job.run_record import RecordError
from batch_job.settings import NightlySettings
from shared_model import settings, tracing
from shared_model.errors import JobError
from shared_model.objects import Location, open_objects
from shared_model.settings import StateSettings

#: Of `--run`: it becomes the name of files. Airflow's run ids are such names.
_NAME = r"[\w.~:+-]*"


def score(args: argparse.Namespace, state: StateSettings) -> None:
    if args.first or args.last:
        _score_days(args, state)
        return
    if args.publish or args.run:
        raise JobError("--publish and --run are of many days, --from and --to")
    path = lookup.find(args.record, args.ds, state)
    scores = _announce(args.ds, path, state)
    if scores and not args.force and _settle_unchanged(args.ds, path, scores):
        return
    if args.check:
        sys.exit(spark_submit.CHANGED)
    accepted = [f"--accept={gate}" for gate in args.accept]
    _submit(args.ds, path, [*(["--force"] if args.force else []), *accepted])


def _score_days(args: argparse.Namespace, state: StateSettings) -> None:
    """Raises: JobError where the days, or flags that are of one day, are wrong."""
    if args.ds or args.record or args.accept:
        raise JobError("--from and --to name many days: --ds, --record and --accept are of one")
    if not re.fullmatch(_NAME, args.run):
        raise JobError(f"--run {args.run!r}: expected letters, digits and _ . ~ : + -")
    left = lookup.days(args.first, args.last)
    if due := lookup.due_run(state, datetime.now(UTC)):
        print(lookup.goes_first(due, len(left)))
        sys.exit(spark_submit.YIELDED)
    if args.check:
        sys.exit(spark_submit.CHANGED)
    flags = [f"--{name}" for name in ("force", "publish") if getattr(args, name)]
    named = ["--run", args.run] if args.run else []
    _start(["--from", args.first, "--to", args.last, "--prefix", sys.prefix, *flags, *named])


def drain(args: argparse.Namespace, state: StateSettings) -> None:
    if args.check:
        from batch_job.steps import backlog

        backlog.run(args, state)
    elif args.ds:
        _submit(args.ds, lookup.find(args.record, args.ds, state), ["--drain"])
    elif found := lookup.find_latest(state):
        path, run = found
        _submit(run.ds, path, ["--drain", "--active"])
    else:
        raise JobError(lookup.nothing_planned(state))


def _announce(ds: str, path: Location, state: StateSettings) -> Location | None:
    """Log what is done in the first lines. Returns the scores table; None without a record: the driver says so."""
    try:
        run = lookup.open_for(path, ds)
    except RecordError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        return None
    scores = Tables.for_input(state, run.input.identity).scores
    log(f"ds={ds}: release {run.release}, run {run.run_id}")
    log(f"input {plain_text.source(run.input)}; {run.input.identity}")
    log(f"output {scores}")
    return scores


def _settle_unchanged(ds: str, path: Location, scores: Location) -> bool:
    """Settle a day that is scored already; False where Spark is needed. `scores`: the table."""
    if f"ds={ds}" not in open_objects(scores).folders():
        # Usually not scored yet: the imports of a closer look would be wasted.
        return False
    from batch_job.steps.unchanged import settle_unchanged

    return settle_unchanged(ds, path)


def _submit(ds: str, path: Location, flags: list[str]) -> None:
    _start([*spark_submit.step_args(ds, str(path)), *flags])


def _start(arguments: list[str]) -> None:
    master = settings.load(NightlySettings).spark_master
    given = {**os.environ, "TANDEM_RUNTIME_PREFIX": sys.prefix}
    command = [*spark_submit.application_command(master, given), *arguments]
    environment = {**os.environ, **spark_submit.spark_environment(given, master)}
    # spark-submit without a Java would exit with 1, the code of a gate.
    if missing := spark_submit.missing_program(environment):
        raise JobError(missing)
    sys.stdout.flush()
    tracing.leave()
    os.execvpe(command[0], command, environment)  # noqa: S606 (spark-submit replaces this process, so its exit code is the step's)

"""The steps that need no Spark, by name."""

import argparse
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from batch_job import plan, planning, printing, publishing, record, records, reporting
from batch_job.commits.fence import connect
from batch_job.planning import Patience
from batch_job.reporting import report
from batch_job.settings import InputSettings, NightlySettings
from shared_model import settings
from shared_model.errors import JobError
from shared_model.redis_server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.settings import StateSettings


def _plan(args: argparse.Namespace, state: StateSettings) -> None:
    records.check_day(args.ds)
    path = args.record or Path(plan.record_path(args.ds, f"manual-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"))
    inputs = settings.load(InputSettings, input_wait_seconds=args.wait)
    patience = Patience(inputs.input_wait_seconds, inputs.input_poll_seconds)
    with RedisServer(state) as server, connect(server.url) as client:
        run = planning.plan_run(state, client, args.ds, path.stem, inputs, patience)
    record.write(path, run)
    print(f"ds={run.ds}: {run.input.lines:,} lines in {len(run.input.files)} files, release {run.release}")
    if unchecked := report.unchecked(run.input):
        print(unchecked)
    print(f"record {path}")


def _publish(args: argparse.Namespace, state: StateSettings) -> None:
    path, nightly = records.find(args.record, args.ds, state), settings.load(NightlySettings)
    with RedisServer(state) as server, connect(server.url) as client:
        run = publishing.publish_run(state, nightly, client, records.open_for(path, args.ds), args.publish)
    record.write(path, run)
    print(f"ds={run.ds}: {report.publication(run)}")


def _rollback(args: argparse.Namespace, state: StateSettings) -> None:
    records.check_day(args.ds)
    nightly = settings.load(NightlySettings)
    with RedisServer(state) as server, connect(server.url) as client:
        release = args.release or pointer.read(Store.of(state), client).active
        done = publishing.roll_back(state, nightly, client, release, args.ds)
    answers = f"epoch {done.now} answers" if done.now else "no epoch before it is kept, so every text is computed"
    print(f"release {done.release}: epoch {done.was} is gone, {answers}")


def _report(args: argparse.Namespace, state: StateSettings) -> None:
    path = records.find(args.record, args.ds, state)
    run = records.open_for(path, args.ds)
    print(report.summary(run))
    written = reporting.write(path, run, settings.load(NightlySettings).price_per_hour)
    print("\n".join(f"  report      {file}" for file in written))
    if problem := report.discrepancy(run):
        raise JobError(problem)


def _read(args: argparse.Namespace, state: StateSettings) -> None:
    records.check_day(args.ds)
    for line in printing.lines(state.scores_table, args.ds, args.limit, args.json):
        print(line)


STEPS: Mapping[str, Callable[[argparse.Namespace, StateSettings], None]] = {
    "plan": _plan,
    "publish": _publish,
    "rollback": _rollback,
    "report": _report,
    "read": _read,
}

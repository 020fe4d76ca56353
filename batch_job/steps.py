"""The steps that need no Spark, by name."""

import argparse
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from batch_job import identity, listing, plan, planning, printing, publishing, record, records, reporting
from batch_job.commits.fence import connect
from batch_job.identity import Tables
from batch_job.inputs import ids
from batch_job.planning import Patience
from batch_job.reporting import report
from batch_job.settings import InputSettings, NightlySettings
from shared_model import settings
from shared_model.redis_store.server import RedisServer
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
    of = run.input.identity
    refusal = records.latest_refusal(state, run.ds, of)
    record.write(path, run)
    print(f"ds={run.ds}: {report.source(run.input)}, release {run.release}")
    print(f"input {identity.described(state, of)}; its scores: {Tables.of(state, of).scores}")
    if refusal:
        print(refusal)
    if unchecked := report.unchecked(run.input):
        print(unchecked)
    if note := ids.note(run.input):
        print(note)
    print(f"record {path}")


def _publish(args: argparse.Namespace, state: StateSettings) -> None:
    path, nightly = records.find(args.record, args.ds, state), settings.load(NightlySettings)
    with RedisServer(state) as server, connect(server.url) as client:
        run = publishing.publish_run(state, nightly, client, records.open_for(path, args.ds), args.publish)
    record.write(path, run)
    print(f"ds={run.ds} of {run.input.identity}: {report.publication(run)}")


def _rollback(args: argparse.Namespace, state: StateSettings) -> None:
    records.check_day(args.ds)
    nightly = settings.load(NightlySettings)
    with RedisServer(state) as server, connect(server.url) as client:
        release = args.release or pointer.read(Store.of(state), client).active
        scores = Tables.of(state, identity.current(state)).scores
        done = publishing.roll_back(scores, nightly, client, release, args.ds)
    live = f"epoch {done.now} is live again" if done.now else "no epoch before it is kept, so every text is computed"
    print(f"release {done.release}: epoch {done.was} is no longer live; {live}")


def _report(args: argparse.Namespace, state: StateSettings) -> None:
    path = records.find(args.record, args.ds, state)
    run = records.open_for(path, args.ds)
    print(report.summary(run))
    if later := records.latest_refusal(state, run.ds, run.input.identity, besides=run.run_id):
        print(f"  latest      {later}")
    nightly = settings.load(NightlySettings)
    written = reporting.write(path, run, nightly.price_per_hour, nightly.price_currency, state.releases_root)
    print("\n".join(f"  report      {file}" for file in written))
    report.check(run, args.published)


def _read(args: argparse.Namespace, state: StateSettings) -> None:
    records.check_day(args.ds)
    wanted = identity.current(state)
    about = printing.About(
        identity.described(state, wanted),
        records.latest_refusal(state, args.ds, wanted),
        records.in_demo(state, args.ds, wanted),
    )
    for line in printing.lines(Tables.of(state, wanted).scores, args.ds, args.limit, args.json, about, args.label):
        print(line)


def _runs(args: argparse.Namespace, state: StateSettings) -> None:
    if args.ds:
        records.check_day(args.ds)
    for line in listing.runs(state.runs_dir, args.ds, args.limit, args.json):
        print(line)


def _quarantine(args: argparse.Namespace, state: StateSettings) -> None:
    records.check_day(args.ds)
    for line in listing.quarantine(state, args.ds, args.limit, args.json):
        print(line)


STEPS: Mapping[str, Callable[[argparse.Namespace, StateSettings], None]] = {
    "plan": _plan,
    "publish": _publish,
    "rollback": _rollback,
    "report": _report,
    "read": _read,
    "runs": _runs,
    "quarantine": _quarantine,
}

"""The `report` step: a run on standard output and as a page, and the exit code that it ended with."""

import argparse

from batch_job import lookup, reporting
from batch_job.reporting import report
from batch_job.settings import NightlySettings
from shared_model import settings
from shared_model.settings import StateSettings


def run(args: argparse.Namespace, state: StateSettings) -> None:
    path = lookup.find(args.record, args.ds, state)
    done = lookup.open_for(path, args.ds)
    print(report.summary(done))
    if later := lookup.latest_refusal(state, done.ds, done.input.identity, besides=done.run_id):
        print(f"  latest      {later}")
    nightly = settings.load(NightlySettings)
    written = reporting.write(path, done, nightly.price_per_hour, nightly.price_currency, state.releases_root)
    print("\n".join(f"  report      {file}" for file in written))
    report.check(done, args.published)

"""The `judge` step: how the gates judged a run, by its exit code, and what a person is asked. No JVM."""

import argparse
import json
import sys

from batch_job import lookup
from batch_job.checks import gate
from batch_job.launch import spark_submit
from batch_job.reporting import approval_request, plain_text
from batch_job.steps.report import check
from shared_model.settings import StateSettings


def run(args: argparse.Namespace, state: StateSettings) -> None:
    path = lookup.find(args.record, args.ds, state)
    run = lookup.open_for(path, args.ds)
    if not (run.waits and run.findings):
        check(run)
        print(f"ds={run.ds}: {plain_text.status(run)}")
        return
    gates = gate.acceptable(run.findings.verdicts)
    asked = approval_request.subject(run, gates), approval_request.body(run, run.findings, path)
    if args.json:
        drawn = bool(run.findings.labels)
        print(json.dumps({"subject": asked[0], "body": asked[1], "gates": gates, "picture": drawn}))
    else:
        print("\n\n".join(asked))
    sys.exit(spark_submit.WAITING)

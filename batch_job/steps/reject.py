"""The `reject` step: a person turns down what a gate refused, or no answer came in time. No JVM."""

import argparse
import getpass
from dataclasses import replace

from batch_job import lookup, run_record
from batch_job.checks import gate
from batch_job.steps.context import open_context, write_report
from batch_job.steps.waiting import findings_of
from batch_job.tables import staged
from shared_model.settings import StateSettings


def run(args: argparse.Namespace, state: StateSettings) -> None:
    path = lookup.find(args.record, args.ds, state)
    run = lookup.open_for(path, args.ds)
    why = gate.reasons(findings_of(run).verdicts)
    comment = " ".join(args.comment.split())
    said = "expired" if args.expired else f"rejected by {args.by or getpass.getuser()}"
    problem = f"ds={run.ds}: {said}{f' ({comment})' if comment else ''}; nothing committed: {why}"
    with open_context(path, run.input.identity) as context:
        # The record first: a list without a run that names it is swept, a run must not name a list that is gone.
        run_record.write(path, replace(run, staged="", problem=problem))
        staged.remove(context.tables.scores, run.staged)
        write_report(context)
    print(problem)

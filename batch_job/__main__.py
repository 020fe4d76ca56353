"""Run a step: `python -m batch_job STEP`. The command line is `batch_job.command_line`."""

import argparse
import importlib
import os
import sys

from batch_job import command_line
from batch_job.launch import exit_codes
from shared_model import settings, startup
from shared_model.settings import StateSettings


def main(arguments: list[str] | None = None) -> int:
    startup.begin()
    args = command_line.parser().parse_args(arguments)
    if args.model:
        # Settings and child processes read it there.
        os.environ["TANDEM_NIGHTLY_MODEL"] = args.model
    return exit_codes.traced(args.step, lambda: _run(args, settings.load(StateSettings)))


def _run(args: argparse.Namespace, state: StateSettings) -> None:
    startup.warn_of_open_state(state.state)
    # Each step imports only what it needs: others take longer to import than `score` takes before Spark starts.
    if args.step in ("score", "drain"):
        from batch_job.steps import submit

        (submit.score if args.step == "score" else submit.drain)(args, state)
        return
    importlib.import_module(f".steps.{args.step}", __package__).run(args, state)


if __name__ == "__main__":
    sys.exit(main())

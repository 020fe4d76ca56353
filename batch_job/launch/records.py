"""Command lines by which a program of Airflow's environment reads run records, which may be behind a URL. Standard
library only."""

import os
from collections.abc import Mapping

from batch_job.launch import commands, spark_submit

#: Most runs that are listed.
RUNS = 100


def runs_command(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Prints the newest runs, one JSON object a line."""
    return commands.command("batch_job", "runs", "--json", "--limit", str(RUNS), environ=environ)


def page_command(ds: str, run_id: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Prints the report page of a run. No shell reads it, and `run_id` is a file's name: it must hold no slash."""
    return _report_command("--page", ds, run_id, environ)


def picture_command(ds: str, run_id: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Prints the plot of a run's labels, in the same way."""
    return _report_command("--picture", ds, run_id, environ)


def _report_command(flag: str, ds: str, run_id: str, environ: Mapping[str, str]) -> list[str]:
    record = spark_submit.record_path(ds, run_id, environ)
    return commands.command("batch_job", "report", flag, *spark_submit.step_args(ds, record), environ=environ)

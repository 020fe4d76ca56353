"""A run that waits for a person, as the steps that ask and answer see it."""

from batch_job.run_record import Findings, RunRecord
from shared_model.errors import JobError


def findings_of(run: RunRecord) -> Findings:
    """The gate's findings of a run that waits. Raises: JobError where none waits."""
    if run.waits and run.findings:
        return run.findings
    problem = f": {run.problem.removeprefix(f'ds={run.ds}: ')}" if run.problem else ""
    raise JobError(f"run {run.run_id} of ds={run.ds} waits for no person; it is {run.state}{problem}")

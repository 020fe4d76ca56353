"""The tasks by which a release is tried beside the active one, as Airflow operators."""

from typing import Any

from airflow.providers.standard.operators.branch import BaseBranchOperator

from batch_job.launch import commands, spark_submit
from dags.commands import Command
from dags.operators import fail

#: Key of the XCom in which `watch` leaves the reason to roll back.
REASON = "reason"


class Canary(Command):
    """`canary`, as the trigger form says."""

    def execute(self, context: Any) -> None:
        self.arguments = [*self.arguments, *commands.canary_flags(context["params"])]
        super().execute(context)


class Watch(BaseBranchOperator, Command):  # type: ignore[misc]  # Airflow has no types here
    """Goes on where the canary keeps both service levels, and rolls back where it is worse; fails where neither can be
    said. `goes_on`, `rolls_back`: the tasks to go on with."""

    def __init__(self, *, goes_on: str, rolls_back: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.goes_on, self.rolls_back = goes_on, rolls_back

    def choose_branch(self, context: Any) -> str:
        code, line = self.run_command()
        if code == commands.WORSE:
            context["ti"].xcom_push(key=REASON, value=line)
            return self.rolls_back
        if code:
            fail(self, code, line)
        return self.goes_on


class RollBack(Command):
    """Drops the canary, and fails with the reason. `watch`: the task that found it."""

    def __init__(self, *, watch: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.watch = watch

    def execute(self, context: Any) -> None:
        super().execute(context)
        reason = context["ti"].xcom_pull(task_ids=self.watch, key=REASON)
        fail(self, spark_submit.REFUSED, f"rolled back: {reason}")

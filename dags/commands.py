"""The tasks of DAGs that are not about one night, as Airflow operators."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException

from batch_job.launch import commands, spark_submit
from dags import links, traces
from dags.operators import Score, Submitted, fail

#: Key of the XCom in which `check` leaves the run that requests are answered beside.
RUN = "run"


class Command(BaseOperator):  # type: ignore[misc]  # Airflow has no types here
    """A command of a package on the runtime's Python, without a JVM."""

    template_fields: tuple[str, ...] = ("arguments",)

    def __init__(self, *, package: str, arguments: list[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.package, self.arguments = package, arguments
        self._hook = SubprocessHook()

    def run_command(self) -> tuple[int, str]:
        """Exit code, as of a step, and last line; the log has all that it prints."""
        command = commands.command(self.package, *self.arguments)
        ended = self._hook.run_command(command, env=traces.step_environment())
        return commands.step_code(self.package, ended.exit_code), ended.output

    def execute(self, context: Any) -> None:
        code, line = self.run_command()
        if code:
            fail(self, code, line)

    def on_kill(self) -> None:
        self._hook.send_sigterm()


class Drift(Command):
    """`drift`, as the trigger form says."""

    def execute(self, context: Any) -> None:
        self.arguments = [*self.arguments, *commands.drift_flags(context["params"])]
        super().execute(context)


class Backlog(Command):
    """Skips the tasks after it where no deferred request waits for them; else leaves the run for them."""

    def execute(self, context: Any) -> None:
        code, said = self.run_command()
        if code not in (0, spark_submit.CHANGED):
            fail(self, code, said)
        found = json.loads(said)
        if not code:
            raise AirflowSkipException(found["line"])
        self.log.info(found["line"])
        context["ti"].xcom_push(key=RUN, value=found)


class Drain(Score):
    """`drain` in spark-submit, by the Spark connection, with the active release."""

    passes = frozenset()
    flags = ("--drain", "--active")

    def execute(self, context: Any) -> None:
        self.env_vars.update(commands.drain_environment(context["params"]))
        self._score(context)


class Backfill(Submitted):
    """`score` of many days. Where a nightly run goes first, it gives the device back and goes on later, as the same try
    and with the days that are left."""

    operator_extra_links = links.of_spark_alone()

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(application=spark_submit.APPLICATION, **kwargs)

    def execute(self, context: Any) -> None:
        params = context["params"]
        flags, chosen = commands.backfill_flags(params, context["run_id"]), commands.model_environment(params)
        look = commands.command("batch_job", "score", *flags, "--check")
        looked = SubprocessHook().run_command(look, env={**traces.step_environment(), **chosen})
        if looked.exit_code != spark_submit.CHANGED:
            self._end(looked.exit_code, looked.output)
        self.application_args = [*flags, f"--prefix={spark_submit.runtime_prefix()}"]
        self.env_vars.update(chosen)
        self._score(context)

    def _end(self, code: int, line: str) -> None:
        if code == spark_submit.YIELDED:
            self.log.info(line)
            raise AirflowRescheduleException(datetime.now(UTC) + timedelta(seconds=commands.YIELD_SECONDS))
        fail(self, code, line)

"""The steps of the nightly run as Airflow operators.

A step that fails says why in one line, the ERROR of its task's log, and ends the task with the step's exit code:
Airflow writes no traceback for SystemExit. `OnlyUnexpected` decides by the code whether to try again.
"""

import os
from datetime import timedelta
from typing import Any, NoReturn

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import BaseOperator, BaseSensorOperator, RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowException, AirflowSensorTimeout, AirflowSkipException

from batch_job.launch import commands, lost_task, spark_submit
from dags import links, traces


class OnlyUnexpected(RetryPolicy):  # type: ignore[misc]  # Airflow has no types here
    """Retries a task, each time after a longer wait, unless its step would end in the same way again."""

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Any = None) -> RetryDecision:
        if isinstance(exception, SystemExit) and spark_submit.is_final(exception.code):
            return RetryDecision.fail("another try would end in the same way")
        return RetryDecision.retry(timedelta(seconds=commands.retry_seconds(try_number)))


def fail(task: BaseOperator, code: int, line: str) -> NoReturn:
    task.log.error(line or f"{task.task_id} ended with code {code} and without a word")
    raise SystemExit(code)


class Step(BaseOperator):  # type: ignore[misc]  # Airflow has no types here
    """A step that runs on the runtime's Python, without a JVM. `further`: the model beside the run's own whose night it
    is of."""

    template_fields: tuple[str, ...] = ("ds", "record")
    operator_extra_links = links.of_step()

    def __init__(self, *, ds: str, record: str, further: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ds, self.record, self.further = ds, record, further
        self._hook = SubprocessHook()

    def run_step(self, *more: str, step: str = "") -> tuple[int, str]:
        """Exit code and last line of a step, the one that the task is called after; the log has all that it prints.
        `more`: further arguments."""
        command = [*spark_submit.step_command(step or self.label, self.ds, self.record), *more]
        ended = self._hook.run_command(command, env=traces.step_environment())
        return ended.exit_code, ended.output

    def execute(self, context: Any) -> None:
        code, line = self.run_step()
        if code:
            fail(self, code, line)

    def on_kill(self) -> None:
        self._hook.send_sigterm()


class Plan(BaseSensorOperator, Step):  # type: ignore[misc]  # Airflow has no types here
    """Looks for the day's messages now and then, without a worker slot in between, and writes the run record, which
    pins the model for the other steps. `model`: "" for that of the settings."""

    template_fields = (*Step.template_fields, "model")

    def __init__(self, *, model: str, **kwargs: Any) -> None:
        wait, poll = spark_submit.input_wait()
        super().__init__(mode="reschedule", poke_interval=poll, timeout=wait, **kwargs)
        self.model = model
        self._line = ""

    @property
    def more(self) -> list[str]:
        """Further arguments."""
        return ["--model", self.model] if self.model else []

    def execute(self, context: Any) -> None:
        try:
            BaseSensorOperator.execute(self, context)
        except AirflowSensorTimeout:
            fail(self, spark_submit.NO_INPUT, self._line)

    def poke(self, context: Any) -> bool:
        run = context["dag_run"]
        if self.further and (run.conf or {}).get("model"):
            raise AirflowSkipException(f"the run is of model {run.conf['model']} alone")
        # A backfill hands one configuration to the runs of all its days.
        if run.run_type == "manual" and (problem := spark_submit.day_problem(run.partition_key, run.conf)):
            fail(self, 2, problem)
        code, self._line = self.run_step(*self.more)
        if code not in (0, spark_submit.NO_INPUT):
            fail(self, code, self._line)
        return code == 0


class Submitted(SparkSubmitOperator):  # type: ignore[misc]  # Airflow has no types here
    """A step in spark-submit, by the Spark connection. It fails with the line and the code of the step, and ends with
    the task and with Airflow's process that supervises it."""

    def _score(self, context: Any) -> None:
        self.env_vars.update(traces.carried())
        self.application_args.append(f"--ends-with={lost_task.starters(os.getpid(), os.getppid())}")
        try:
            super().execute(context)
        except AirflowException as error:
            code, said = self._ended()
            if not code:
                raise
            self._end(code, spark_submit.complaint(said) or str(error))

    def _end(self, code: int, line: str) -> None:
        """How a code that is not 0 ends the task."""
        fail(self, code, line)

    def _ended(self) -> tuple[int, list[str]]:
        """Exit code of spark-submit and its last lines; code 0 where it was not what failed."""
        process = self._hook._submit_sp if self._hook else None
        return (process.returncode or 0, list(self._hook._last_submit_log_lines)) if process else (0, [])


class Score(Submitted):
    """`score`; without Spark where the day is scored already. It has done its work also where a gate refuses what it
    scored: the next task says whether a person may accept that."""

    template_fields = (*Submitted.template_fields, "ds", "record")
    #: Exit codes of spark-submit after which the next task says what is to be done.
    passes = frozenset({spark_submit.REFUSED})
    #: Further arguments of the driver.
    flags: tuple[str, ...] = ()
    operator_extra_links = links.of_spark()

    def __init__(self, *, ds: str, record: str, further: str = "", **kwargs: Any) -> None:
        arguments = [*spark_submit.step_args(ds, record), *self.flags]
        super().__init__(application=spark_submit.APPLICATION, application_args=arguments, **kwargs)
        self.ds, self.record, self.further = ds, record, further

    def execute(self, context: Any) -> None:
        flags, chosen = spark_submit.score_flags(context["params"]), spark_submit.score_environment(context["params"])
        self.application_args.extend(flags)
        self.env_vars.update(chosen)
        command = [*spark_submit.step_command("score", self.ds, self.record), *flags]
        looked = SubprocessHook().run_command(command, env={**traces.step_environment(), **chosen})
        if looked.exit_code not in (0, spark_submit.CHANGED):
            fail(self, looked.exit_code, looked.output)
        if looked.exit_code == spark_submit.CHANGED:
            self._score(context)

    def _end(self, code: int, line: str) -> None:
        if code not in self.passes:
            fail(self, code, line)
        self.log.warning(line)

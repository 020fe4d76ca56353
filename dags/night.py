"""The tasks of one night: they score a day with one model, commit the scores, and publish them."""

from typing import Any

from airflow.sdk import BaseOperator, TriggerRule

from batch_job.launch import commands, operating, spark_submit
from dags.approval import ANSWER, Approve, Commit, Judge
from dags.documentation import TASKS
from dags.operators import Plan, Score
from dags.outcome import Publish, Report

DS = "{{ day_of(dag_run.partition_key, dag_run.conf) }}"
#: The model that the trigger form names.
FORM_MODEL = "{{ (dag_run.conf or {}).get('model') or '' }}"


def night(group: str = "", further: str = "") -> list[BaseOperator]:
    """`group`: the id of the task group that it is in. `further`: a model beside that of form and settings, by its
    name. Returns the tasks that decide the run's state."""
    record = spark_submit.record_path(DS, operating.run_name("{{ run_id }}", further))

    def step(name: str) -> dict[str, Any]:
        """The arguments of every step's task."""
        return {"task_id": name, "ds": DS, "record": record, "further": further, "doc_md": TASKS[name]}

    def named(name: str) -> str:
        """The id of a task."""
        return f"{group}.{name}" if group else name

    plan = Plan(**step("plan"), model=further or FORM_MODEL)
    score = Score(
        **step("score"),
        conn_id="spark_default",
        name=f"nightly_scoring {DS} {further}".rstrip(),
        conf=spark_submit.spark_conf(),
        properties_file=spark_submit.properties_file() or None,
        env_vars=spark_submit.spark_environment(),
        # Spark takes all cores, and one device holds one copy of the model.
        pool=commands.DEVICE_POOL,
    )
    judge = Judge(**step("judge"), asks=named("approve"), goes_on=named("publish"))
    approve = Approve(**step("approve"), judge=named("judge"), params=ANSWER)
    commit = Commit(**step("commit"), judge=named("judge"), approve=named("approve"))
    publish = Publish(**step("publish"), trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS)
    report = Report(**step("report"), plan=named("plan"), trigger_rule=TriggerRule.ALL_DONE)
    plan >> score >> judge >> [approve, publish]
    approve >> commit >> publish >> report
    return [publish, report]

"""The nightly run as Airflow sees it: one day, its steps, one run record between them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, CronPartitionTimetable, Param, TriggerRule

from batch_job.launch import spark_submit
from dags.approval import FORM, Approve, Commit, Judge
from dags.documentation import TASKS
from dags.operators import OnlyUnexpected, Plan, Report, Score, Step

DS = "{{ day_of(dag_run.partition_key, dag_run.conf) }}"
RECORD = spark_submit.record_path(DS, "{{ run_id }}")


def step(name: str) -> dict[str, str]:
    """The arguments of every step's task."""
    return {"task_id": name, "ds": DS, "record": RECORD, "doc_md": TASKS[name]}


with DAG(
    dag_id="nightly_scoring",
    description="Score one day of messages, commit the scores, publish them to Redis.",
    schedule=CronPartitionTimetable("0 2 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    # A day that waits for its messages, or for a person, must not hold up the others.
    max_active_runs=16,
    is_paused_upon_creation=True,
    # The trigger form shows it filled in. Runs that the schedule starts have a partition key and do not look at it.
    params={
        "day": Param(
            spark_submit.yesterday(), type="string", format="date", description="The day to score, YYYY-MM-DD."
        ),
        "model": Param("", type="string", description="The model to score with; empty: TANDEM_NIGHTLY_MODEL."),
        "force": Param(False, type="boolean", description="Score again what is committed already."),
        "int8": Param(False, type="boolean", description="Score in INT8 on CPU: faster, and less exact."),
        "accept": Param(
            [],
            type="array",
            items={"type": "string", "enum": list(spark_submit.ACCEPTABLE)},
            description="Gates that may fail without asking a person: labels, agreement, agreement-drop.",
        ),
    },
    user_defined_macros={"day_of": spark_submit.day_of},
    default_args={
        "owner": "tandem",
        "retries": 2,
        "retry_delay": timedelta(seconds=30),
        "retry_policy": OnlyUnexpected(),
    },
    tags=["tandem", "nightly"],
    doc_md=str(Path(__file__).with_suffix(".md")),
) as dag:
    planned = Plan(**step("plan"), model="{{ (dag_run.conf or {}).get('model', '') }}")
    score = Score(
        **step("score"),
        conn_id="spark_default",
        name=f"nightly_scoring {DS}",
        conf=spark_submit.spark_conf(),
        properties_file=spark_submit.properties_file() or None,
        env_vars=spark_submit.spark_environment(),
        # Spark takes all cores, and one device holds one copy of the model.
        max_active_tis_per_dag=1,
    )
    judge = Judge(**step("judge"), asks="approve", goes_on="publish")
    approve = Approve(**step("approve"), judge="judge", params=FORM)
    commit = Commit(**step("commit"), judge="judge", approve="approve")
    publish = Step(**step("publish"), trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS)
    report = Report(**step("report"), trigger_rule=TriggerRule.ALL_DONE)
    complete = EmptyOperator(task_id="complete", doc_md=TASKS["complete"])
    planned >> score >> judge >> [approve, publish]
    approve >> commit >> publish >> report
    [publish, report] >> complete

"""The nightly run as Airflow sees it: one day, its steps, one run record between them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, CronPartitionTimetable, DeadlineAlert, DeadlineReference, SyncCallback, TriggerRule

from batch_job.launch import commands, operating, spark_submit
from dags.alerts import late
from dags.approval import ANSWER, Approve, Commit, Judge
from dags.documentation import TASKS
from dags.form import FORM
from dags.operators import OnlyUnexpected, Plan, Score
from dags.outcome import Publish, Report

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
    params=FORM,
    deadline=DeadlineAlert(
        # Not the logical date: runs of a partition have none, and their deadline would never come.
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(seconds=operating.late_seconds()),
        callback=SyncCallback(late),
        name="late",
    ),
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
    planned = Plan(**step("plan"), model="{{ (dag_run.conf or {}).get('model') or '' }}")
    score = Score(
        **step("score"),
        conn_id="spark_default",
        name=f"nightly_scoring {DS}",
        conf=spark_submit.spark_conf(),
        properties_file=spark_submit.properties_file() or None,
        env_vars=spark_submit.spark_environment(),
        # Spark takes all cores, and one device holds one copy of the model.
        pool=commands.DEVICE_POOL,
    )
    judge = Judge(**step("judge"), asks="approve", goes_on="publish")
    approve = Approve(**step("approve"), judge="judge", params=ANSWER)
    commit = Commit(**step("commit"), judge="judge", approve="approve")
    publish = Publish(**step("publish"), trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS)
    report = Report(**step("report"), trigger_rule=TriggerRule.ALL_DONE)
    complete = EmptyOperator(task_id="complete", doc_md=TASKS["complete"])
    planned >> score >> judge >> [approve, publish]
    approve >> commit >> publish >> report
    [publish, report] >> complete

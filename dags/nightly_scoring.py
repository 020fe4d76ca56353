"""The nightly run as Airflow sees it: one day, its steps with each configured model, one run record between them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import (
    DAG,
    CronPartitionTimetable,
    DeadlineAlert,
    DeadlineReference,
    SyncCallback,
    TaskGroup,
    TriggerRule,
)

from batch_job.launch import operating, spark_submit
from dags.alerts import late
from dags.documentation import TASKS
from dags.form import FORM
from dags.night import night
from dags.operators import OnlyUnexpected

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
    # A further model is skipped where the form names another.
    complete = EmptyOperator(task_id="complete", doc_md=TASKS["complete"], trigger_rule=TriggerRule.NONE_FAILED)
    night() >> complete
    for model in operating.further_models():
        with TaskGroup(f"model-{model}") as group:
            night(group.group_id, model) >> complete

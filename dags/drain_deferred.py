"""Deferred requests that idle lanes left, as Airflow sees them: a look without a JVM, then Spark where it is needed."""

from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG, CronTriggerTimetable, Param

from batch_job.launch import commands, spark_submit
from dags.commands import RUN, Backlog, Drain
from dags.documentation import DRAIN_TASKS
from dags.operators import OnlyUnexpected

FOUND = f"ti.xcom_pull(task_ids='check', key='{RUN}')"

with DAG(
    dag_id="drain_deferred",
    description="Answer the deferred requests that idle lanes have left.",
    schedule=CronTriggerTimetable("*/15 * * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    params={
        "limit": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            description="Most requests that this run answers; empty: TANDEM_DEFERRED_DRAIN_LIMIT.",
        ),
    },
    default_args={"owner": "tandem", "retries": 2, "retry_policy": OnlyUnexpected()},
    tags=["tandem", "deferred"],
    doc_md=str(Path(__file__).with_suffix(".md")),
) as dag:
    check = Backlog(
        task_id="check", package="batch_job", arguments=["drain", "--check", "--json"], doc_md=DRAIN_TASKS["check"]
    )
    drain = Drain(
        task_id="drain",
        ds=f"{{{{ {FOUND}['ds'] }}}}",
        record=f"{{{{ {FOUND}['record'] }}}}",
        conn_id="spark_default",
        name="drain_deferred",
        conf=spark_submit.spark_conf(),
        properties_file=spark_submit.properties_file() or None,
        env_vars=spark_submit.spark_environment(),
        pool=commands.DEVICE_POOL,
        # A night that waits for the device goes first.
        priority_weight=1,
        doc_md=DRAIN_TASKS["drain"],
    )
    check >> drain

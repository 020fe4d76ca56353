"""Housekeeping, as Airflow sees it: what is old expires once a week, and all paths serve one release."""

from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG, CronTriggerTimetable

from dags.commands import Command
from dags.documentation import HOUSEKEEPING_TASKS
from dags.operators import OnlyUnexpected

with DAG(
    dag_id="housekeeping",
    description="Let old runs, quarantined lines and epochs expire; check that all paths serve one release.",
    schedule=CronTriggerTimetable("0 5 * * 0", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"owner": "tandem", "retries": 2, "retry_policy": OnlyUnexpected()},
    tags=["tandem", "housekeeping"],
    doc_md=str(Path(__file__).with_suffix(".md")),
) as dag:
    Command(
        task_id="expire",
        package="batch_job",
        arguments=["housekeeping"],
        doc_md=HOUSEKEEPING_TASKS["expire"],
    )

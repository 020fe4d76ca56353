"""The drift of committed scores, as Airflow sees it: windows of days against a baseline, once a week."""

from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG, CronTriggerTimetable, Param

from batch_job.launch import operating
from dags.commands import Drift
from dags.documentation import DRIFT_TASKS
from dags.operators import OnlyUnexpected

with DAG(
    dag_id="drift",
    description="Compare labels, scores and lengths of the last days with a baseline.",
    schedule=CronTriggerTimetable("0 6 * * 1", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    params={
        "to": Param(
            None,
            type=["null", "string"],
            format="date",
            description="Last day of the windows, YYYY-MM-DD; empty: the last committed one.",
        ),
        "days": Param(
            [7, 30],
            type="array",
            items={"type": "integer", "minimum": 1, "maximum": 366},
            minItems=1,
            description="Days of each window.",
        ),
        "model": Param(
            None,
            type=["null", "string"],
            pattern=operating.MODEL_OR_NONE,
            description="The model whose scores; empty: TANDEM_NIGHTLY_MODEL.",
        ),
    },
    default_args={"owner": "tandem", "retries": 2, "retry_policy": OnlyUnexpected()},
    tags=["tandem", "drift"],
    doc_md=str(Path(__file__).with_suffix(".md")),
) as dag:
    Drift(task_id="measure", package="batch_job", arguments=["drift"], doc_md=DRIFT_TASKS["measure"])

"""Many days as Airflow sees them: one task, one Spark application, and nightly runs that go first."""

from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG, Param

from batch_job.launch import commands, operating, spark_submit
from dags.commands import Backfill
from dags.documentation import BACKFILL_TASKS
from dags.operators import OnlyUnexpected

with DAG(
    dag_id="backfill_scoring",
    description="Score a range of days in one Spark application; nightly runs go first.",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    params={
        "from": Param(type="string", format="date", description="First day, YYYY-MM-DD."),
        "to": Param(type="string", format="date", description="Last day, YYYY-MM-DD; it is scored, too."),
        "model": Param(
            None,
            type=["null", "string"],
            pattern=operating.MODEL_OR_NONE,
            description="The model to score with, by its name; empty: TANDEM_NIGHTLY_MODEL, else the default one.",
        ),
        "force": Param(False, type="boolean", description="Score again what is committed already."),
        "publish": Param(False, type="boolean", description="Publish the newest committed day at the end."),
    },
    default_args={"owner": "tandem", "retries": 2, "retry_policy": OnlyUnexpected()},
    tags=["tandem", "backfill"],
    doc_md=str(Path(__file__).with_suffix(".md")),
) as dag:
    Backfill(
        task_id="score",
        conn_id="spark_default",
        name="backfill_scoring",
        conf=spark_submit.spark_conf(),
        properties_file=spark_submit.properties_file() or None,
        env_vars=spark_submit.spark_environment(),
        pool=commands.DEVICE_POOL,
        # A night that waits for the device goes first.
        priority_weight=1,
        doc_md=BACKFILL_TASKS["score"],
    )

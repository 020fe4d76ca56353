"""The nightly run as Airflow sees it: one partition, four steps, one run record between them."""

from datetime import UTC, datetime, timedelta

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.sensors.python import PythonSensor
from airflow.sdk import DAG, CronPartitionTimetable

from batch_job import plan

DS = "{{ partition_key }}"
RECORD = plan.record_path(DS, "{{ run_id }}")
WAIT_SECONDS, POLL_SECONDS = plan.patience()


def step(name: str) -> BashOperator:
    """A step that runs on the runtime's Python, without a JVM."""
    return BashOperator(
        task_id=name,
        bash_command=plan.step_command(name),
        env={"DS": DS, "RECORD": RECORD, **plan.python_environment()},
        append_env=True,
    )


with DAG(
    dag_id="nightly_scoring",
    description="Score one day of messages, commit the scores, publish them to Redis.",
    schedule=CronPartitionTimetable("0 2 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    tags=["tandem", "nightly"],
    doc_md="""
### Nightly scoring

Scores the messages of one day (the **partition key**, `YYYY-MM-DD`) with the active release in half precision,
commits them to the scores table in one transaction, and publishes them to Redis for the online service.

* Scheduled at 02:00 UTC for the day before. By hand: trigger with a partition key.
* A day whose messages are not there yet is looked for now and then, without a worker slot in between.
* A day that is committed already, with the same input and release, is left as it is.
* Two runs of one day: the newer wins, the older fails with `stale`.
* A day that the gate refuses fails in `score`, with one line that says why. To commit it all the same, run
  `python -m batch_job score --ds DAY --accept GATE` where the job runs, then clear the task.
* Each run's figures are in `STATE/runs/<day>/<run id>.json`, its report in the folder of that name; the task `report`
  prints them.
""",
) as dag:
    planned = PythonSensor(
        task_id="plan",
        python_callable=plan.plan_day,
        op_kwargs={"ds": DS, "record": RECORD},
        mode="reschedule",
        poke_interval=POLL_SECONDS,
        timeout=WAIT_SECONDS,
    )
    score = SparkSubmitOperator(
        task_id="score",
        conn_id="spark_default",
        name=f"nightly_scoring {DS}",
        application=plan.APPLICATION,
        application_args=plan.step_args(DS, RECORD),
        conf=plan.spark_conf(),
        env_vars=plan.spark_environment(),
    )
    planned >> score >> step("publish") >> step("report")

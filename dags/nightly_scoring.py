"""The nightly run as Airflow sees it: one day, four steps, one run record between them."""

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, CronPartitionTimetable, Param, TriggerRule

from batch_job.launch import spark_submit
from dags.operators import OnlyUnexpected, Plan, Report, Score, Step

DS = "{{ day_of(dag_run.partition_key, dag_run.conf) }}"
RECORD = spark_submit.record_path(DS, "{{ run_id }}")

with DAG(
    dag_id="nightly_scoring",
    description="Score one day of messages, commit the scores, publish them to Redis.",
    schedule=CronPartitionTimetable("0 2 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    # A day that waits for its messages must not hold up the others.
    max_active_runs=16,
    is_paused_upon_creation=True,
    # The trigger form shows it filled in. Runs that the schedule starts have a partition key and do not look at it.
    params={
        "day": Param(
            spark_submit.yesterday(), type="string", format="date", description="The day to score, YYYY-MM-DD."
        ),
        "model": Param("", type="string", description="The model to score with; empty: TANDEM_NIGHTLY_MODEL."),
    },
    user_defined_macros={"day_of": spark_submit.day_of},
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30), "retry_policy": OnlyUnexpected()},
    tags=["tandem", "nightly"],
    doc_md="""
### Nightly scoring

Scores the messages of one day with the active release in half precision, commits the scores to the scores table in one
transaction, and publishes them to Redis for the online service.

* **Which day.** The schedule runs at 02:00 UTC for the day before. To run another day, trigger the DAG and choose the
  `day`. Through the API, pass `{"day": "YYYY-MM-DD"}` as configuration, or a partition key; a run without either fails
  at once. To run several days, start a backfill. The note of each run is its day.
* **Which model.** The default one, unless the environment of Airflow sets `TANDEM_NIGHTLY_MODEL` or the run's `model`
  names another: its scores have a table of their own. To score a day with several, start a run for each.
* **A day without messages.** `plan` looks for them now and then, without a worker slot in between, and fails when its
  time is up. Other days run meanwhile; one day at a time is scored.
* **A failed task.** The ERROR line of its log says why. A step fails at once when another try would end in the same
  way: the gate refuses the day, input or settings are wrong, or a newer run owns the day. A step whose process is
  killed, or that meets an unexpected error, is tried three times.
* **A day that the gate refuses** fails in `score`. To commit it all the same, run
  `python -m batch_job score --ds DAY --accept GATE` where the job runs, then clear the task.
* **The report.** `report` prints the run, also one that failed. The run's figures are in
  `STATE/runs/<day>/<run id>.json`, its report page in the folder of that name. `complete` succeeds, and the run with
  it, when the scores are published and the figures add up.
* A day that is committed already, with the same input and release, is left as it is. Of two runs of one day the newer
  wins; the older fails with `stale`.
""",
) as dag:
    planned = Plan(task_id="plan", ds=DS, record=RECORD, model="{{ (dag_run.conf or {}).get('model', '') }}")
    score = Score(
        task_id="score",
        ds=DS,
        record=RECORD,
        conn_id="spark_default",
        name=f"nightly_scoring {DS}",
        conf=spark_submit.spark_conf(),
        properties_file=spark_submit.properties_file() or None,
        env_vars=spark_submit.spark_environment(),
        # Spark takes all cores, and one device holds one copy of the model.
        max_active_tis_per_dag=1,
    )
    publish = Step(task_id="publish", ds=DS, record=RECORD)
    report = Report(task_id="report", ds=DS, record=RECORD, trigger_rule=TriggerRule.ALL_DONE)
    complete = EmptyOperator(task_id="complete")
    planned >> score >> publish >> report
    [publish, report] >> complete

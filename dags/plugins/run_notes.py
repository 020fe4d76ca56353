"""An Airflow plugin: the note of each nightly run is its day. Airflow gives a run that a person triggers a name without
it. Runs in the scheduler, whose `AIRFLOW__CORE__PLUGINS_FOLDER` is this file's folder."""

import sys
from typing import Any, ClassVar

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

from batch_job.launch import spark_submit

DAG_ID = "nightly_scoring"


@hookimpl
def on_dag_run_running(dag_run: Any, msg: str) -> None:
    if dag_run.dag_id == DAG_ID and not dag_run.note:
        dag_run.note = spark_submit.day_of(dag_run.partition_key, dag_run.conf) or "no day"


class RunNotes(AirflowPlugin):  # type: ignore[misc]
    name = "tandem_run_notes"
    listeners: ClassVar[list[Any]] = [sys.modules[__name__]]

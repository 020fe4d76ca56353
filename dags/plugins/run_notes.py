"""An Airflow plugin: the note of each nightly run is its day, and at its end its verdict. Airflow gives a run that a
person triggers a name without either. Runs in the scheduler, whose `AIRFLOW__CORE__PLUGINS_FOLDER` is this file's
folder."""

import sys
from typing import Any, ClassVar

from airflow.listeners import hookimpl
from airflow.models.xcom import XComModel
from airflow.plugins_manager import AirflowPlugin
from sqlalchemy.orm import object_session

from batch_job.launch import spark_submit

DAG_ID = "nightly_scoring"
#: The key of the XCom in which the report of each model's night leaves a note. That of the run's own model comes first.
_NOTE, _FIRST = "note", "report"
#: Characters of a note that Airflow keeps.
_MOST = 1000


@hookimpl
def on_dag_run_running(dag_run: Any, msg: str) -> None:
    if dag_run.dag_id == DAG_ID and not dag_run.note:
        dag_run.note = day_of(dag_run)


@hookimpl
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    note_outcome(dag_run)


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    note_outcome(dag_run)


def note_outcome(dag_run: Any) -> None:
    """A note of a person stays; that of an earlier end is replaced, after a task was cleared."""
    day = day_of(dag_run)
    note = dag_run.note or day
    if dag_run.dag_id != DAG_ID or not (note == day or note.startswith(f"{day}: ")):
        return
    left = XComModel.get_many(run_id=dag_run.run_id, key=_NOTE, dag_ids=DAG_ID)
    found = sorted(object_session(dag_run).scalars(left), key=lambda it: (it.task_id != _FIRST, it.task_id))
    if found:
        dag_run.note = "\n".join(map(XComModel.deserialize_value, found))[:_MOST]


def day_of(dag_run: Any) -> str:
    return spark_submit.day_of(dag_run.partition_key, dag_run.conf) or "no day"


class RunNotes(AirflowPlugin):  # type: ignore[misc]
    name = "tandem_run_notes"
    listeners: ClassVar[list[Any]] = [sys.modules[__name__]]

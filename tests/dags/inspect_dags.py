"""Runs on Airflow's Python: parses each file of the DAG folder by itself, as the dag processor does, and prints what
every DAG shows to people, as JSON."""

import copy
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

folder, tries = Path(sys.argv[1]), json.loads(sys.argv[2])


def found(file: Path) -> dict[str, Any]:
    """`again`: whether a second reading gives the same DAGs, so that no new version is made of them."""
    before, started = set(sys.modules), time.process_time()
    bag = DagBag(dag_folder=str(file), collect_dags=False)
    bag.collect_dags(str(file))
    seconds = time.process_time() - started
    once = [DagSerialization.serialize_dag(dag) for dag in bag.dags.values()]
    bag.collect_dags(str(file), only_if_updated=False)
    twice = [DagSerialization.serialize_dag(dag) for dag in bag.dags.values()]
    return {
        "errors": list(bag.import_errors.values()),
        "seconds": seconds,
        "again": once == twice,
        "loaded": sorted(set(sys.modules) - before),
        "dags": {dag.dag_id: shown(dag) for dag in bag.dags.values()},
    }


def shown(dag: Any) -> dict[str, Any]:
    return {
        "doc": dag.doc_md,
        "description": dag.description,
        "tags": sorted(dag.tags),
        "paused": dag.is_paused_upon_creation,
        "catchup": dag.catchup,
        "max_active_runs": dag.max_active_runs,
        "schedule": getattr(dag.timetable, "expression", None),
        "params": {name: of_param(dag.params.get_param(name)) for name in dag.params},
        "refused": [conf for conf in tries.get(dag.dag_id, []) if is_refused(dag, conf)],
        "tasks": {task.task_id: of_task(task) for task in dag.tasks},
    }


def of_param(param: Any) -> dict[str, Any]:
    """Without its value: a required one has none that JSON knows."""
    return {"description": param.description, "schema": param.schema}


def is_refused(dag: Any, conf: dict[str, object]) -> bool:
    """Whether the trigger form's schema refuses these values."""
    params = copy.deepcopy(dag.params)
    try:
        params.update(conf)
        params.validate()
    except (ParamValidationError, ValueError):
        return True
    return False


def of_task(task: Any) -> dict[str, Any]:
    return {
        "owner": task.owner,
        "doc": task.doc_md,
        "pool": task.pool,
        "priority": priority(task),
        "retries": task.retries,
        "policy": type(task.retry_policy).__name__,
        "downstream": sorted(task.downstream_task_ids),
    }


def priority(task: Any) -> int:
    """Among tasks that wait for a slot, the highest goes first: that of the task and of all after it."""
    below = task.get_flat_relative_ids(upstream=False)
    return sum(task.dag.get_task(name).priority_weight for name in {task.task_id, *below})


files = [file for file in sorted(folder.glob("*.py")) if "with DAG(" in file.read_text()]
with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
    # Each in a process of its own: what one imports is not there for the next.
    json.dump(dict(zip([file.name for file in files], pool.map(found, files, chunksize=1), strict=True)), sys.stdout)

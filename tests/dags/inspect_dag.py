"""Runs on Airflow's Python: parses the DAG folder as the dag processor does and prints what it found, as JSON."""

import json
import sys

from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

folder, partition_key, run_id = sys.argv[1:]
before = set(sys.modules)
bag = DagBag(dag_folder=folder, collect_dags=False)
bag.collect_dags(folder)
ours = sorted(name for name in sys.modules if name.partition(".")[0] in ("batch_job", "shared_model", "protos"))
heavy = sorted({"pyspark", "deltalake", "torch", "openvino", "redis"} & (set(sys.modules) - before))
dag = bag.dags["nightly_scoring"]
DagSerialization.serialize_dag(dag)
for task in dag.tasks:
    task.render_template_fields({"partition_key": partition_key, "run_id": run_id})
plan, score = dag.get_task("plan"), dag.get_task("score")
json.dump(
    {
        "errors": bag.import_errors,
        "imported": ours,
        "heavy": heavy,
        "dags": list(bag.dags),
        "downstream": {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks},
        "retries": {task.task_id: [task.retries, task.retry_delay.total_seconds()] for task in dag.tasks},
        "paused": dag.is_paused_upon_creation,
        "catchup": dag.catchup,
        "max_active_runs": dag.max_active_runs,
        "timetable": {
            "class": type(dag.timetable).__name__,
            "cron": dag.timetable.expression,
            "offset": dag.timetable.run_offset,
            "key": dag.timetable.key_format,
            "zone": str(dag.timetable.timezone),
        },
        "tags": sorted(dag.tags),
        "doc": dag.doc_md,
        "plan": {"asked": plan.op_kwargs, "mode": plan.mode, "every": plan.poke_interval, "wait": plan.timeout},
        "score": {
            "application": score.application,
            "args": score.application_args,
            "env": score.env_vars,
            "conf": score.conf,
            "connection": score._conn_id,
        },
    },
    sys.stdout,
)

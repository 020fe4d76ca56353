"""Runs on Airflow's Python: parses the DAG folder as the dag processor does and prints what it found, as JSON."""

import json
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unittest.mock import Mock, patch

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
retried = {
    code: dag.get_task("score").retry_policy.evaluate(SystemExit(code), 1, 2).action.value
    for code in (1, 2, 3, 4, 70, 75, -9)
}
run = SimpleNamespace(partition_key=None, conf={"day": partition_key, "model": "side"})
for task in dag.tasks:
    task.render_template_fields({"dag_run": run, "run_id": run_id, **dag.user_defined_macros})
plan, score = dag.get_task("plan"), dag.get_task("score")
operators = sys.modules[type(score).__module__]


def timed_out(line: str) -> list[object]:
    """Exit code and errors of `plan` when it has looked in vain for longer than it may."""
    looked = datetime.now(UTC) - timedelta(days=1)
    log = Mock()
    type(plan).log = property(lambda _: log)
    plan.run_step = lambda: (4, line)
    context = {
        "dag_run": SimpleNamespace(run_type="scheduled"),
        "ti": SimpleNamespace(get_first_reschedule_date=lambda _: looked),
    }
    try:
        plan.execute(context)
    except SystemExit as ended:
        return [ended.code, [call.args[0] for call in log.error.call_args_list]]
    return []


def started(looked: int) -> bool | None:
    """Whether `score` starts Spark after a look that ended with this code; None where it fails."""
    ended = SimpleNamespace(exit_code=looked, output="the line of the look")
    with (
        patch.object(operators, "SubprocessHook", lambda: SimpleNamespace(run_command=lambda command, env: ended)),
        patch.object(operators.SparkSubmitOperator, "execute") as spark_submit,
    ):
        try:
            score.execute({})
        except SystemExit:
            return None
    return bool(spark_submit.called)


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
        "rules": {task.task_id: task.trigger_rule.value for task in dag.tasks},
        "retried": retried,
        "started": {code: started(code) for code in (0, 2, 5)},
        "timed_out": timed_out("no messages: it is not there"),
        "day": dag.params.get_param("day").dump(),
        "at_once": score.max_active_tis_per_dag,
        "plan": {
            "more": plan.more,
            "ds": plan.ds,
            "record": plan.record,
            "mode": plan.mode,
            "every": plan.poke_interval,
            "wait": plan.timeout,
        },
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

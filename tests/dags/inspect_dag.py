"""Runs on Airflow's Python: parses the DAG folder as the dag processor does and prints what it found, as JSON."""

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unittest.mock import Mock, patch

from airflow import plugins_manager
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.openlineage import conf
from airflow.providers.openlineage.plugins.openlineage import OpenLineageProviderPlugin
from airflow.sdk.exceptions import AirflowException, AirflowSkipException, TaskAwaitingInput
from airflow.serialization.serialized_objects import DagSerialization

from batch_job.launch import lost_task

folder, partition_key, run_id = sys.argv[1:]
before = set(sys.modules)
bag = DagBag(dag_folder=folder, collect_dags=False)
bag.collect_dags(folder)
ours = sorted(name for name in sys.modules if name.partition(".")[0] in ("batch_job", "shared_model", "protos"))
plugins, plugin_errors = plugins_manager._get_plugins()
loaded = {
    "names": sorted(it.name for it in plugins if it.name.startswith("tandem")),
    "errors": plugin_errors,
    # Each task would pay for it.
    "page": "dags.pages.app" in sys.modules,
    "apps": [it["url_prefix"] for it in plugins_manager.get_fastapi_plugins()[0]],
}
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
#: Of the run's own model; those of the further one are in a group.
OWN = [task for task in dag.tasks if "." not in task.task_id]
plan, score = dag.get_task("plan"), dag.get_task("score")
operators = sys.modules[type(score).__module__]
outcome = sys.modules[type(dag.get_task("publish")).__module__]


def timed_out(line: str) -> list[object]:
    """Exit code and errors of `plan` when it has looked in vain for longer than it may."""
    looked = datetime.now(UTC) - timedelta(days=1)
    log = Mock()
    type(plan).log = property(lambda _: log)
    plan.run_step = lambda *_: (4, line)
    context = {
        "dag_run": SimpleNamespace(run_type="scheduled"),
        "ti": SimpleNamespace(get_first_reschedule_date=lambda _: looked),
    }
    try:
        plan.execute(context)
    except SystemExit as ended:
        return [ended.code, [call.args[0] for call in log.error.call_args_list]]
    return []


def branch(code: int, line: str = "") -> list[object]:
    """Where `judge` goes on after its step ended with this code, and the question that it leaves; None: it fails."""
    judge, ti = dag.get_task("judge"), Mock()
    judge.run_step = lambda: (code, line)
    try:
        return [judge.choose_branch({"ti": ti}), *(call.kwargs["value"] for call in ti.xcom_push.call_args_list)]
    except SystemExit as ended:
        return [None, ended.code]


def answered(event: dict[str, object]) -> dict[str, object]:
    """The step that `approve` starts after this answer, what it returns, and the code with which it fails."""
    approve, steps = dag.get_task("approve"), list[object]()
    approve.run_step = lambda *more, step: steps.append([step, *more]) or (0, "the verdict")
    try:
        returned, ended = approve.execute_complete({}, event), None
    except SystemExit as failure:
        returned, ended = None, failure.code
    return {"steps": steps, "returned": returned, "code": ended}


def asked() -> dict[str, object]:
    """The request that `approve` makes of the question that `judge` has left."""
    approve, ti = dag.get_task("approve"), Mock()
    ti.xcom_pull.return_value = {"subject": "what?", "body": "figures {{ 1 }}", "picture": True}
    with patch("airflow.providers.standard.operators.hitl.upsert_hitl_detail") as made:
        try:
            approve.execute({"task_instance": ti, "ti": ti, "run_id": run_id})
        except TaskAwaitingInput as waiting:
            request = {name: made.call_args.kwargs[name] for name in ("subject", "body", "options", "assigned_users")}
            return {**request, "seconds": waiting.timeout.total_seconds()}
    return {}


def committed(answer: dict[str, str]) -> list[str]:
    """The arguments of `commit` after this answer."""
    commit, steps = dag.get_task("commit"), list[str]()
    commit.run_step = lambda *more: steps.extend(more) or (0, "")
    pulled = {"judge": {"gates": ["labels", "agreement"]}, "approve": answer}
    commit.execute({"ti": SimpleNamespace(xcom_pull=lambda task_ids, key="": pulled[task_ids])})
    return steps


def response(option: str) -> dict[str, object]:
    by = {"id": "7", "name": "ada"}
    at = datetime(2026, 1, 15, tzinfo=UTC)
    return {
        "chosen_options": [option],
        "params_input": {"comment": "--seen"},
        "responded_at": at,
        "responded_by_user": by,
    }


# Where nothing names a transport, no event is made.
OFF = [conf.is_disabled(), len(OpenLineageProviderPlugin.listeners)]
with patch.dict(os.environ, {"OPENLINEAGE_URL": "http://127.0.0.1:1"}):
    ON = not conf.is_disabled()
ARGUMENTS = tuple(score.application_args)
PARAMS = {name: dag.params[name] for name in dag.params}


def started(looked: int) -> bool | None:
    """Whether `score` starts Spark after a look that ended with this code; None where it fails."""
    ended = SimpleNamespace(exit_code=looked, output="the line of the look")
    score.application_args = list(ARGUMENTS)
    with (
        patch.object(operators, "SubprocessHook", lambda: SimpleNamespace(run_command=lambda command, env: ended)),
        patch.object(operators.SparkSubmitOperator, "execute") as spark_submit,
    ):
        try:
            score.execute({"params": PARAMS})
        except SystemExit:
            return None
    return bool(spark_submit.called)


def chosen() -> dict[str, object]:
    """What `score` looks with and starts Spark with where the form says so."""
    run = Mock(return_value=SimpleNamespace(exit_code=5, output=""))
    before, score.application_args = dict(score.env_vars), list(ARGUMENTS)
    with (
        patch.object(operators, "SubprocessHook", lambda: SimpleNamespace(run_command=run)),
        patch.object(operators.SparkSubmitOperator, "execute"),
    ):
        score.execute({"params": {**PARAMS, "force": True, "int8": True, "accept": ["labels"]}})
    (command,), environ = run.call_args.args, run.call_args.kwargs["env"]
    found = {
        "look": command[-2:],
        "args": score.application_args[len(ARGUMENTS) : -1],
        "ends": score.application_args[-1] == f"--ends-with={lost_task.starters(os.getpid(), os.getppid())}",
        "int8": [environ["TANDEM_NIGHTLY_INT8"], score.env_vars["TANDEM_NIGHTLY_INT8"]],
    }
    score.env_vars = before
    return found


def refused() -> list[str]:
    """What `score` says where spark-submit ends with a gate's code; it does not fail."""
    log = Mock()
    type(score).log = property(lambda _: log)
    score._ended = lambda: (1, ["batch_job score: refused"])
    with patch.object(operators.SparkSubmitOperator, "execute", side_effect=AirflowException):
        score._score({})
    return [call.args[0] for call in log.warning.call_args_list]


def links(task: object) -> list[object]:
    return list(task.operator_extra_links)


def published(scores: str) -> dict[str, object]:
    """The asset's event that `publish` leaves, with its partitions, and its lineage for OpenLineage."""
    from openlineage.client.serde import Serde

    publish, event = dag.get_task("publish"), Mock()
    columns = {"id": ["message_id"], "label": ["body", "reply"]}
    lineage = {"release": "tiny-1", "day": "a day", "input": "s3a://bucket/chats", "scores": scores, "columns": columns}
    facts = json.dumps({"rows": 7, "note": "a note", "lineage": lineage})
    publish.run_step = lambda *more, step="": (0, facts if more else "")
    before = publish.get_openlineage_facets_on_complete(None)
    publish.execute({"outlet_events": {outcome.SCORES: event}})
    told = publish.get_openlineage_facets_on_complete(None)
    return {
        "event": [[call.args[0] for call in event.add_partitions.call_args_list], event.extra],
        "before": before,
        "inputs": [Serde.to_dict(it) for it in told.inputs],
        "outputs": [Serde.to_dict(it) for it in told.outputs],
        "release": [told.run_facets["tandem_release"].release, told.run_facets["tandem_release"].day],
    }


def noted() -> str:
    """The note of a run whose two models left more text than Airflow keeps."""
    (listener,) = next(it for it in plugins if it.name == "tandem_run_notes").listeners
    left = [SimpleNamespace(task_id=task, value=f"{task}: {'x' * 900}") for task in ("model-side.report", "report")]
    ended = SimpleNamespace(dag_id=dag.dag_id, partition_key=partition_key, conf={}, run_id=run_id, note="")
    with (
        patch.object(listener, "object_session", lambda _: SimpleNamespace(scalars=lambda _: left)),
        patch.object(listener.XComModel, "get_many"),
        patch.object(listener.XComModel, "deserialize_value", lambda it: it.value),
    ):
        listener.on_dag_run_failed(ended, "")
    return ended.note


def further() -> dict[str, object]:
    """The night of a further model beside the run's own."""
    tasks = {task.label: task for task in dag.tasks if task.task_id.startswith("model-side.")}
    judge, steps = tasks["judge"], list[list[str]]()
    judge._hook = SimpleNamespace(run_command=lambda command, env: steps.append(command[2:]) or Mock(exit_code=0))
    goes_on = judge.choose_branch({"ti": Mock()})
    alone = SimpleNamespace(run_type="manual", partition_key=None, conf={"day": partition_key, "model": "other"})
    try:
        skipped = tasks["plan"].poke({"dag_run": alone})
    except AirflowSkipException as error:
        skipped = str(error)
    return {
        "downstream": {name: sorted(task.downstream_task_ids) for name, task in tasks.items()},
        "goes_on": [judge.asks, goes_on],
        "step": steps[0],
        "more": tasks["plan"].more,
        "skipped": skipped,
        "question": [tasks["approve"].judge, tasks["commit"].judge, tasks["commit"].approve, tasks["report"].plan],
        "records": sorted({task.record for task in tasks.values()}),
        "pools": [name for name, task in tasks.items() if task.pool == "tandem_device"],
        "links": sorted(
            {links(task)[0].get_link(task, ti_key=SimpleNamespace(run_id=run_id)) for task in tasks.values()}
        ),
        "outlets": [it.name for it in tasks["publish"].outlets],
    }


json.dump(
    {
        "further": further(),
        "noted": noted(),
        "errors": bag.import_errors,
        "imported": ours,
        "heavy": heavy,
        "plugins": loaded,
        "downstream": {task.task_id: sorted(task.downstream_task_ids) for task in OWN},
        "retries": {task.task_id: [task.retries, task.retry_delay.total_seconds()] for task in OWN},
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
        "rules": {task.task_id: task.trigger_rule.value for task in OWN},
        "retried": retried,
        "openlineage": {"off": OFF, "on": ON},
        "published": published("/state/scores"),
        "judged": {code: branch(code, '{"gates": ["labels"]}') for code in (0, 1, 2, 6)},
        "asked": asked(),
        "answered": {
            "approve": answered(response("Approve")),
            "reject": answered(response("Reject")),
            "expired": answered({"error": "late", "error_type": "timeout"}),
        },
        "committed": committed({"by": "ada", "comment": "--seen"}),
        "refused": refused(),
        "chosen": chosen(),
        "params": {name: dag.params.get_param(name).dump() for name in dag.params},
        "docs": {task.task_id: task.doc_md for task in OWN},
        "owners": sorted({task.owner for task in OWN}),
        "started": {code: started(code) for code in (0, 2, 5)},
        "timed_out": timed_out("no messages: it is not there"),
        "day": dag.params.get_param("day").dump(),
        "pools": {task.task_id: task.pool for task in OWN},
        "links": {
            task.task_id: {it.name: it.get_link(task, ti_key=SimpleNamespace(run_id=run_id)) for it in links(task)}
            for task in OWN
        },
        "deadline": [
            [it.name, type(it.reference).__name__, it.interval.total_seconds(), it.callback.path] for it in dag.deadline
        ],
        "outlets": {task.task_id: [it.name for it in task.outlets] for task in OWN if task.outlets},
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
            "args": ARGUMENTS,
            "env": score.env_vars,
            "conf": score.conf,
            "connection": score._conn_id,
        },
    },
    sys.stdout,
)

"""Runs on Airflow's Python: what tasks of DAGs that are not about one night do as their commands end, as JSON."""

import contextlib
import json
import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowException, AirflowRescheduleException, AirflowSkipException
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from batch_job.launch import commands
from dags import traces
from dags.operators import OnlyUnexpected, Score

folder = sys.argv[1]
bag = DagBag(dag_folder=folder, collect_dags=False)
bag.collect_dags(folder)


def task(dag: str, name: str) -> Any:
    return bag.dags[dag].get_task(name)


def ended(of: Any, code: int, line: str, **context: Any) -> list[object]:
    """How a task ends where its command ends so: the state, what is said, and what it leaves for later tasks."""
    ti, log = Mock(), Mock()
    of.run_command = lambda *_: (code, line)
    with patch.object(type(of), "log", log):
        try:
            of.execute({"ti": ti, **context})
        except AirflowSkipException as skipped:
            return ["skipped", str(skipped)]
        except SystemExit as failed:
            return [failed.code, *(call.args[0] for call in log.error.call_args_list)]
    return ["done", *(call.kwargs["value"] for call in ti.xcom_push.call_args_list)]


def measured(code: int, **params: object) -> list[object]:
    """How `measure` ends where its command ends so, with what the form says, and the command."""
    measure = task("drift", "measure")
    before = measure.arguments
    how = ended(measure, code, "its line", params=params)
    given, measure.arguments = measure.arguments, before
    return [how, commands.command(measure.package, *given)[1:]]


def drained(code: int, *said: str) -> list[object]:
    """How `drain` ends where spark-submit ends so."""
    drain, log = task("drain_deferred", "drain"), Mock()
    drain._ended = lambda: (code, list(said))
    error = AirflowException("spark-submit failed") if code else None
    with (
        patch.object(type(drain), "log", log),
        patch("dags.operators.SparkSubmitOperator.execute", side_effect=error),
    ):
        try:
            drain.execute({"params": {"limit": 7}})
        except SystemExit as failed:
            return [failed.code, *(call.args[0] for call in log.error.call_args_list)]
    return ["done", drain.env_vars["TANDEM_DEFERRED_DRAIN_LIMIT"]]


def backfilled(looked: int, code: int = 0, *said: str) -> dict[str, object]:
    """How a backfill ends where its look and spark-submit end so; what Spark is given, None where it is not started."""
    score, log = task("backfill_scoring", "score"), Mock()
    score._ended = lambda: (code, list(said))
    error = AirflowException("spark-submit failed") if code else None
    run = Mock(return_value=SimpleNamespace(exit_code=looked, output="the line of the look"))
    form = {"from": "2026-01-01", "to": "2026-01-07", "model": "side", "force": True, "publish": False}
    with (
        patch.object(type(score), "log", log),
        patch("dags.commands.SubprocessHook", lambda: SimpleNamespace(run_command=run)),
        patch("dags.operators.SparkSubmitOperator.execute", side_effect=error) as spark,
    ):
        try:
            score.execute({"params": form, "run_id": "manual__1"})
            ended: object = "done"
        except AirflowRescheduleException as later:
            ended = ["later", round((later.reschedule_date - datetime.now(UTC)).total_seconds())]
        except SystemExit as failed:
            ended = [failed.code, *(call.args[0] for call in log.error.call_args_list)]
    (command,) = run.call_args.args
    # Without the processes that it ends with.
    given = [*score.application_args[:-1], score.env_vars["TANDEM_NIGHTLY_MODEL"]]
    return {"look": command[1:], "ended": ended, "spark": given if spark.called else None}


def released(name: str, code: int, **context: Any) -> list[object]:
    """How a task of `release_model` ends where its command ends so, and the command's arguments."""
    of = task("release_model", name)
    before = of.arguments
    of._hook = Mock()
    of._hook.run_command.return_value = Mock(exit_code=code, output="its line")
    ti, log = context.pop("ti", Mock()), Mock()
    with patch.object(type(of), "log", log):
        try:
            said = of.choose_branch({"ti": ti}) if name == "watch" else of.execute({"ti": ti, **context})
        except SystemExit as failed:
            said = [failed.code, *(call.args[0] for call in log.error.call_args_list)]
    given, of.arguments = of.arguments, before
    return [said, given, [call.kwargs["value"] for call in ti.xcom_push.call_args_list]]


def rolled_back(code: int) -> list[object]:
    left = Mock()
    left.xcom_pull.return_value = "5% failed"
    return released("roll_back", code, ti=left)


def traced() -> list[str]:
    """TRACEPARENT as a step gets it without a span of the task; the task's span; TRACEPARENT of a step and a driver."""
    task_span = TracerProvider().get_tracer("airflow").start_span("task")
    before = traces.step_environment().get("TRACEPARENT", "")
    with trace.use_span(task_span):
        step = traces.step_environment()["TRACEPARENT"]
        drained(0)
    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers, trace.set_span_in_context(task_span))
    return [before, headers["traceparent"], step, drain.env_vars["TRACEPARENT"]]


def line(dag: str, name: str, **params: object) -> list[str]:
    """The command of a task where the form says so, rendered, and as its process is started with it."""
    of, started = bag.dags[dag].get_task(name), Mock(return_value=SimpleNamespace(exit_code=0, output="{}"))
    # A task is rendered in place, so each case needs one of its own.
    of = of.prepare_for_execution()
    of.render_template_fields({"params": params})
    of._hook = SimpleNamespace(run_command=started)
    with contextlib.suppress(AirflowSkipException, SystemExit, KeyError):
        (of.choose_branch if name == "watch" else of.execute)({"params": params, "ti": Mock()})
    return list(started.call_args.args[0][2:])


def retried(failure: BaseException, tries: int = 1) -> list[object]:
    decision = OnlyUnexpected().evaluate(failure, tries, 2)
    return [decision.action.value, decision.retry_delay.total_seconds() if decision.retry_delay else None]


RELEASE = {"release": "one-0123456789ab", "weight": 0.25, "minutes": 0.5, "calls": 30, "default": True}
LINES = {
    **{name: line("release_model", name, **RELEASE) for name in bag.dags["release_model"].task_ids},
    "check": line("drain_deferred", "check"),
    "measure": line("drift", "measure", to="2026-01-14", days=[7, 30], model="side"),
    "expire": line("housekeeping", "expire"),
}
FOUND = json.dumps({"line": "3 wait", "ds": "2026-01-14", "record": "/r.json"})
check, drain = task("drain_deferred", "check"), task("drain_deferred", "drain")
json.dump(
    {
        "lines": LINES,
        "check": {code: ended(check, code, FOUND if code in (0, 5) else "its line") for code in (0, 2, 5, 75)},
        "command": commands.command(check.package, *check.arguments)[1:],
        "drain": {
            "args": list(drain.application_args),
            "done": drained(0),
            "refused": drained(1, "batch_job drain: a line"),
            "gone": drained(75, "noise", "batch_job drain: Redis did not answer"),
        },
        "drift": {
            "all": measured(0, to="2026-01-14", days=[7, 30], model="side"),
            "moved": measured(1, to=None, days=[7], model=""),
        },
        "release": {
            "canary": [
                released("canary", 0, params={"weight": 0.1, "default": default})[:2] for default in (False, True)
            ],
            "watch": {code: released("watch", code) for code in (0, 2, 3, 4, 5)},
            "roll_back": {code: rolled_back(code)[0] for code in (0, 2, 3)},
            "promote": released("promote", 3),
        },
        "retried": {code: retried(SystemExit(code)) for code in (1, 2, 3, 4, 70, 75, -9, 137)},
        "backfill": {
            "done": backfilled(5),
            "due": backfilled(7),
            "yielded": backfilled(5, 7, "noise", "2 days are left"),
            "wrong": backfilled(2),
            "refused": backfilled(5, 1, "the last line"),
        },
        "lost": retried(AirflowException("spark-submit was lost")),
        "waits": [retried(SystemExit(75), tries)[1] for tries in (1, 2, 3, 9, 2000)],
        "night": Score.passes == {1},
        "traced": traced(),
    },
    sys.stdout,
)

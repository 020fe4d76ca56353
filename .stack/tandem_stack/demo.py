"""make demo: the whole system once, end to end, on real parts; then what it did."""

import dataclasses
import os
import shutil
import time
from datetime import date, timedelta

from batch_job import run_record
from batch_job.settings import InputSettings
from realtime_service.models.warmup import Width
from realtime_service.settings import lanes
from shared_model import demo_messages, devices, settings
from shared_model.demo_messages import FIRST_DAY, NEW_PRODUCT
from shared_model.objects import join
from shared_model.settings import StateSettings
from tandem_stack import calls, checks, object_store, separate, stack
from tandem_stack.airflow_api import AirflowApi, RunState
from tandem_stack.checks import Problem
from tandem_stack.memory import measuring
from tandem_stack.progress import say, step
from tandem_stack.stack import DAG, Plan, Stack
from tandem_stack.summary import Host, Nightly, Summary, Took

#: Of two days: just enough for the gate to compare the distributions of their labels.
MESSAGES = 2_000
DAYS = tuple(FIRST_DAY + timedelta(days=number) for number in range(2))
#: A day on which a new product is out, so that the gate refuses it and a person has to look.
LAUNCH, COMMENT = DAYS[-1] + timedelta(days=1), "the new virtual card is out"
#: The Airflow user who looks, unless TANDEM_APPROVERS names others.
APPROVER = "ada"
_RUN_SECONDS = 600.0


def run() -> int:
    """0 when all of it happened, 1 when something did not. STORE=s3: on a local S3 server.

    Raises: Problem, SettingError when it could not be tried.
    """
    started = time.time()
    with object_store.serving(os.environ.get("STORE", "")) as store:
        return _run(started, store)


def _run(started: float, store: str) -> int:
    installing = started - float(os.environ.get("DEMO_STARTED") or started)
    # The demo scores messages of its own, whatever input the shell names.
    for name in settings.names(InputSettings):
        os.environ.pop(name, None)
    os.environ.setdefault("TANDEM_APPROVERS", APPROVER)
    plan = stack.plan(demo_state(settings.load(StateSettings), store), scheduled=False)
    checks.need_ports(plan.ports())
    # New each time: what is shown must have happened now, and what `make up` keeps stays as it is.
    shutil.rmtree(plan.state.state, ignore_errors=True)
    with measuring() as memory:
        build, messages = ["build", "--if-missing"], ["messages", "--count", str(MESSAGES)]
        with stack.running(plan, build, messages) as running:
            demo_messages.write_archive(
                plan.state.messages_dir, MESSAGES // 2, days=1, damaged=False, first_day=LAUNCH, topics=NEW_PRODUCT
            )
            nights, beside = _nights(running)
            outcomes, answer = _calls(plan, nights), calls.every_head(plan.service.grpc_address)
        reached = separate.run(plan)
    device, cores = devices.detect(), devices.cores()
    summary = Summary(
        nights=nights,
        outcomes=outcomes,
        beside=beside,
        answer=answer,
        reached=reached,
        lanes=tuple(lanes(plan.service, device).values()),
        host=Host(cores, Width.on(device, cores).streams),
        airflow=plan.airflow.address,
        took=Took(time.time() - started + installing, installing, memory.bytes),
        state=str(plan.state.state),
        store=store,
    )
    print(summary.text())
    return 1 if summary.missing() else 0


def demo_state(state: StateSettings, store: str = "") -> StateSettings:
    """A state of the demo's own; only the releases are shared, which take minutes to build, and the keys that sign the
    pointer to them."""
    own = dataclasses.replace(state, state=state.state / "demo", store=store, messages="", scores="")
    return dataclasses.replace(own, releases=state.releases_root, keys=str(state.keys_dir))


def _nights(running: Stack) -> tuple[list[Nightly], calls.Outcome]:
    """All days, with chat messages coming in meanwhile. Each starts while the one before is scored, so that it is
    planned by then; Airflow scores one day at a time. The last one waits for a person."""
    running.api.pause(DAG, False)
    run_ids, days = list[str](), (*DAYS, LAUNCH)
    with (
        calls.beside_nightly(running.plan.service.grpc_address) as beside,
        step(f"nightly runs of {', '.join(map(str, days))}", lambda: "; ".join(_tasks(running, it) for it in run_ids)),
    ):
        for day in days:
            run_ids.append(running.api.trigger(DAG, {"day": str(day)}))
            running.api.wait_started(DAG, run_ids[-1], "score", _RUN_SECONDS)
        _approve(running, run_ids[-1])
        ended = [running.api.wait_run(DAG, run_id, _RUN_SECONDS) for run_id in run_ids]
    return [Nightly(state, _record(running.plan, state)) for state in ended], beside.result()


def _approve(running: Stack, run_id: str) -> None:
    """Show what the refused run asks, and answer it as one of the approvers."""
    asked = running.api.wait_question(DAG, run_id, "approve", _RUN_SECONDS)
    say(f"  required action: {asked['subject']}")
    say("\n".join(f"    {line}".rstrip() for line in asked["body"].replace("\\", "").splitlines()))
    user = running.plan.airflow.approvers[0]
    person = AirflowApi(running.plan.airflow.address, user, running.plan.airflow.password(user))
    person.wait_ready(_RUN_SECONDS)
    person.answer(DAG, run_id, "approve", "Approve", comment=COMMENT)
    say(f"  approved by {user}: {COMMENT}")


def _tasks(running: Stack, run_id: str) -> str:
    """The first task of a run that has not succeeded yet, or how the run is."""
    run = running.api.run_state(DAG, run_id)
    task, state = next(((task, state) for task, state in run.tasks.items() if state != "success"), ("run", run.state))
    return f"{run.partition} {task} {state}"


def _record(plan: Plan, run: RunState) -> run_record.RunRecord | None:
    path = join(plan.state.runs_dir, run.partition, f"{run.run_id}.json")
    try:
        return run_record.read(path)
    except run_record.RecordError as error:
        say(str(error))
        return None


def _calls(plan: Plan, nights: list[Nightly]) -> list[calls.Outcome]:
    """Raises: Problem where no night was published."""
    outcomes, published = [], [night.run.partition for night in nights if night.run.state == "success"]
    if not published:
        raise Problem(f"no night has succeeded: {[(night.run.partition, night.run.tasks) for night in nights]}")
    with step("calls down every path"):
        newest = date.fromisoformat(published[-1])
        for outcome in calls.every_path(plan.service.grpc_address, plan.state.messages_dir, newest):
            say(f"  {outcome.path}: {len(outcome.milliseconds)} answers")
            outcomes.append(outcome)
    return outcomes

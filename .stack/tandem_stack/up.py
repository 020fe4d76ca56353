"""make up: the same parts, kept running until Ctrl-C."""

import time
from datetime import UTC, date, datetime, timedelta

import redis

from batch_job.settings import InputSettings
from realtime_service.routing import overrides
from shared_model import settings
from shared_model.demo_messages import FIRST_DAY
from shared_model.errors import BadInput
from shared_model.redis_store import keys
from shared_model.settings import StateSettings
from tandem_stack import airflow_standalone, stack
from tandem_stack.progress import say
from tandem_stack.stack import DAG, DRAIN, Stack

MESSAGES = 20_000
#: When the DAG's schedule starts the run of the day before, UTC.
_RUNS_AT = timedelta(hours=2)
_CHECK_SECONDS = 1.0


def run() -> int:
    """Returns 0 after Ctrl-C. Raises: Problem, SettingError when it does not come up, or something ends."""
    state = settings.load(StateSettings)
    plan = stack.plan(state, scheduled=True)
    own, due = own_archive(state, settings.load(InputSettings)), due_day(datetime.now(UTC))
    if own:
        say(f"{own} names an archive of yours: no demo messages are written")
    try:
        with stack.running(plan, ["build", "--if-missing"], *([] if own else demo_messages(due))) as running:
            starts = str(due) not in running.api.scheduled_days(DAG)
            for dag in (DAG, DRAIN):
                running.api.wait_dag(dag, stack.READY_SECONDS)
                running.api.pause(dag, False)
            print(welcome(running, due, starts, demo=not own), flush=True)
            while True:
                running.supervisor.check()
                time.sleep(_CHECK_SECONDS)
    except KeyboardInterrupt:
        say("stopped; nothing is left running")
    return 0


def own_archive(state: StateSettings, inputs: InputSettings) -> str:
    """The setting that names an archive which is not ours to write to; empty when none does."""
    if inputs.input_path:
        return "TANDEM_INPUT_PATH"
    return "TANDEM_MESSAGES" if state.messages else ""


def due_day(now: datetime) -> date:
    """The day of the latest run that the schedule has asked for. Unpausing starts it, if it never ran."""
    return (now - _RUNS_AT).date() - timedelta(days=1)


def demo_messages(due: date) -> list[list[str]]:
    """The demo's days, and one for the run that is due."""
    last_night = ["--count", str(MESSAGES // 2), "--days", "1", "--first-day", str(due)]
    return [["messages", "--count", str(MESSAGES)], ["messages", *last_night]]


def welcome(running: Stack, due: date, starts: bool, demo: bool) -> str:
    plan = running.plan
    # The policy that operators have set outlives a restart.
    with redis.Redis.from_url(running.redis_url) as client:
        policy = bytes(client.get(keys.routing_policy()) or b"")
    lines = [
        f"Airflow   {plan.airflow.address}   user {airflow_standalone.USER}, password {plan.airflow.password()}",
        *(f"          user {name}, password {plan.airflow.password(name)}" for name in plan.airflow.approvers),
        f"gRPC      {plan.service.grpc_address}",
        f"metrics   http://{plan.service.metrics_address}/metrics",
        "",
        schedule_line(due, starts),
        f"Score another day: trigger the DAG in Airflow and choose the day{f', e.g. {FIRST_DAY}' if demo else ''}.",
        'Ask:  .venv/bin/python -m realtime_service call "my card has not arrived" --timeout-ms 80',
        *policy_lines(policy),
        "",
        "Ctrl-C stops everything.",
    ]
    return "\n".join(["", *(f"  {line}".rstrip() for line in lines), ""])


def schedule_line(due: date, starts: bool) -> str:
    if starts:
        return f"The DAG {DAG} is on: it scores {due} now, and each day at 02:00 UTC the day before."
    return f"The DAG {DAG} is on: it scores each day at 02:00 UTC the day before; {due} had its run."


def policy_lines(stored: bytes) -> list[str]:
    if not stored:
        return []
    undo = "undo:  .venv/bin/python -m realtime_service policy reset --all"
    try:
        numbers = overrides.numbers(overrides.decode(stored))
    except BadInput as error:
        return ["", f"The operators' policy in Redis is damaged: {error}", undo]
    said = " ".join(f"{name}={value:.10g}" for name, value in numbers.items())
    return ["", f"Operators' policy in force: {said}", undo] if said else []

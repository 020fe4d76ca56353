"""make up: the same parts, kept running until Ctrl-C."""

import time
from datetime import UTC, datetime, timedelta

from shared_model import settings
from shared_model.settings import StateSettings
from tandem_stack import airflow_standalone, stack
from tandem_stack.progress import say
from tandem_stack.stack import DAG, Plan

MESSAGES = 20_000
_CHECK_SECONDS = 1.0


def run() -> int:
    """Returns 0 after Ctrl-C. Raises: Problem, SettingError when it does not come up, or something ends."""
    plan = stack.plan(settings.load(StateSettings), scheduled=True)
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    demo_days = ["messages", "--count", str(MESSAGES)]
    # Unpausing starts the run that was due this morning, so there is something for it to score.
    last_night = ["messages", "--count", str(MESSAGES // 2), "--days", "1", "--first-day", str(yesterday)]
    try:
        with stack.running(plan, ["build", "--if-missing"], demo_days, last_night) as running:
            running.api.pause(DAG, False)
            print(_welcome(plan), flush=True)
            while True:
                running.check()
                time.sleep(_CHECK_SECONDS)
    except KeyboardInterrupt:
        say("stopped; nothing is left running")
    return 0


def _welcome(plan: Plan) -> str:
    password = plan.airflow.password()
    return f"""
  Airflow   {plan.airflow.address}   user {airflow_standalone.USER}, password {password}
  gRPC      {plan.service.grpc_address}
  metrics   http://{plan.service.metrics_address}/metrics

  The DAG {DAG} is on: it scores yesterday now, and each day at 02:00 UTC.
  Score another day: trigger it with a partition key, e.g. 2026-01-14.
  Ask:  .venv/bin/python -m realtime_service call "my card has not arrived" --timeout-ms 80

  Ctrl-C stops everything.
"""

"""A release on its way to all callers, as Airflow sees it: judged, tried on some of them, promoted or dropped."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param

from batch_job.launch import commands
from dags.commands import Command
from dags.documentation import RELEASE_TASKS
from dags.operators import OnlyUnexpected
from dags.trial import Canary, RollBack, Watch

RELEASE = "{{ params.release }}"


def command(name: str, *arguments: str) -> dict[str, Any]:
    """The arguments of every command's task."""
    return {"task_id": name, "package": "shared_model", "arguments": [*arguments], "doc_md": RELEASE_TASKS[name]}


with DAG(
    dag_id="release_model",
    description="Try a release on some callers; promote it if it keeps both service levels, else roll back.",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    # Two canaries of one model would replace each other.
    max_active_runs=1,
    is_paused_upon_creation=True,
    params={
        "release": Param(
            type="string", pattern=commands.RELEASE, description="The release: its id, or its name if only one has it."
        ),
        "weight": Param(
            0.05,
            type="number",
            exclusiveMinimum=0,
            exclusiveMaximum=1,
            description="Share of the callers that it answers while it is watched.",
        ),
        "minutes": Param(30, type="number", exclusiveMinimum=0, maximum=1440, description="How long it is watched."),
        "calls": Param(100, type="integer", minimum=1, description="Fewest calls of it that decide."),
        "default": Param(
            False,
            type="boolean",
            description="Make it the default model; otherwise it is one of the model of its own name.",
        ),
    },
    default_args={"owner": "tandem", "retries": 2, "retry_policy": OnlyUnexpected()},
    tags=["tandem", "release"],
    doc_md=str(Path(__file__).with_suffix(".md")),
) as dag:
    verify = Command(**command("verify", "verify", RELEASE))
    # It measures how fast the release is.
    gate = Command(**command("gate", "gate", "--release", RELEASE), pool=commands.DEVICE_POOL)
    canary = Canary(**command("canary", "canary", RELEASE))
    flags = ("--minutes={{ params.minutes }}", "--calls={{ params.calls }}")
    watch = Watch(**command("watch", "watch", RELEASE, *flags), goes_on="promote", rolls_back="roll_back")
    promote = Command(**command("promote", "promote", RELEASE, "--canary", "--wait"))
    roll_back = RollBack(**command("roll_back", "rollback", "--canary", RELEASE), watch="watch")
    verify >> gate >> canary >> watch >> [promote, roll_back]

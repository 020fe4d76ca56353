"""The DAG as Airflow sees it: parsed on Airflow's own Python. The stack's tests run it for real."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from batch_job.checks import gate
from batch_job.launch import operating, spark_submit
from shared_model.releases import manifest
from shared_model.releases.store import Release

pytestmark = pytest.mark.heavy

REPOSITORY = Path(__file__).parents[2]
#: Where the page *Tandem* shows the run.
REPORT = "/airflow/plugin/tandem/tandem/runs/2026-01-14/manual__2026-11-21T08%3A00%3A00%2B00%3A00"
#: Where the API server has the plot of its labels.
PICTURE = f"{REPORT.replace('/plugin/tandem', '')}/labels.svg"
DAY, RUN = "2026-01-14", "manual__2026-11-21T08:00:00+00:00"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What an Airflow task finds in its environment, and traps it may inherit."""
    folder = tmp_path_factory.mktemp("airflow")
    return {
        **os.environ,
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "dags" / "plugins"),
        "PYTHONPATH": str(REPOSITORY),
        "TANDEM_RUNTIME_PREFIX": sys.prefix,
        "TANDEM_STATE": str(folder / "state"),
        "TANDEM_INPUT_POLL_SECONDS": "7",
        "TANDEM_APPROVERS": "ada, bob",
        "TANDEM_APPROVAL_SECONDS": "90",
        "TANDEM_LATE_SECONDS": "5400",
        "TANDEM_NIGHTLY_MODELS": "side",
        "TANDEM_SPARK_URL": "https://spark.example",
        "AIRFLOW__API__BASE_URL": "https://example/airflow/",
        "SPARK_HOME": "/elsewhere",
        "PYSPARK_DRIVER_PYTHON": "/elsewhere/python",
    }


@pytest.fixture(scope="module")
def dag(environment: dict[str, str]) -> dict[str, Any]:
    python = REPOSITORY / ".venv-airflow" / "bin" / "python"
    assert python.exists(), f"{python} is missing: `make setup` installs it"
    command = [str(python), str(Path(__file__).parent / "inspect_dag.py"), str(REPOSITORY / "dags"), DAY, RUN]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_it_parses_and_sees_only_the_planning_module(dag: dict[str, Any]) -> None:
    assert dag["errors"] == {}
    launch = [f"batch_job.launch.{name}" for name in ("commands", "lost_task", "operating", "spark_submit")]
    assert dag["imported"] == ["batch_job", "batch_job.launch", *launch]
    assert dag["heavy"] == []


def test_plugins_load_and_tasks_do_not_pay_for_the_page_of_the_api_server(dag: dict[str, Any]) -> None:
    names = ["tandem_page", "tandem_run_notes"]
    assert dag["plugins"] == {"names": names, "errors": {}, "page": False, "apps": ["/tandem"]}


def test_steps_in_a_row_a_person_between_them_and_what_decides_the_runs_state(dag: dict[str, Any]) -> None:
    assert dag["downstream"] == {
        "plan": ["score"],
        "score": ["judge"],
        "judge": ["approve", "publish"],
        "approve": ["commit"],
        "commit": ["publish"],
        "publish": ["complete", "report"],
        "report": ["complete"],
        "complete": [],
    }
    steps = ("plan", "score", "judge", "approve", "commit")
    own = {"report": "all_done", "publish": "none_failed_min_one_success", "complete": "none_failed"}
    assert dag["rules"] == {**own, **dict.fromkeys(steps, "all_success")}


def test_a_note_is_cut_where_airflow_would_refuse_it_and_begins_with_the_runs_own_model(dag: dict[str, Any]) -> None:
    own = f"report: {'x' * 900}\nmodel-side.report: "
    assert (dag["noted"][: len(own)], len(dag["noted"])) == (own, 1000)


def test_a_further_model_has_a_night_of_its_own_beside_that_of_the_run(
    dag: dict[str, Any], environment: dict[str, str]
) -> None:
    """Nothing is shared but the run: neither record nor question, report nor asset."""
    found, group = dag["further"], "model-side."
    # In the same order as the run's own.
    own = {name: [it if it == "complete" else group + it for it in after] for name, after in dag["downstream"].items()}
    assert found["downstream"] == {name: after for name, after in own.items() if name != "complete"}
    record = f"{environment['TANDEM_STATE']}/runs/{DAY}/{RUN}@side.json"
    assert found["records"] == [record]
    assert found["step"] == ["batch_job", "judge", "--json", "--ds", DAY, "--record", record]
    assert found["goes_on"] == [f"{group}approve", f"{group}publish"]
    assert found["question"] == [f"{group}{name}" for name in ("judge", "judge", "approve", "plan")]
    assert found["links"] == [f"{REPORT}%40side"]
    assert (found["pools"], found["outlets"], found["more"]) == (["score"], ["scores-side"], ["--model", "side"])


def test_a_run_of_another_model_is_of_that_one_alone(dag: dict[str, Any]) -> None:
    assert dag["further"]["skipped"] == "the run is of model other alone"


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"TANDEM_NIGHTLY_MODELS": "side, no/name"}, "no/name is no name of a model"),
        ({"TANDEM_NIGHTLY_MODELS": "side,side"}, "side would score each day twice"),
        ({"TANDEM_NIGHTLY_MODELS": "side", "TANDEM_NIGHTLY_MODEL": "side"}, "side would score each day twice"),
    ],
)
def test_a_further_model_that_is_none_or_is_there_twice_is_named(environ: dict[str, str], why: str) -> None:
    assert operating.further_models({"TANDEM_NIGHTLY_MODELS": " a, b-1 ,"}) == ["a", "b-1"]
    with pytest.raises(ValueError, match=f"TANDEM_NIGHTLY_MODELS=.*: {why}"):
        operating.further_models(environ)


def test_only_an_unexpected_end_is_tried_again_and_no_person_is_asked_twice(dag: dict[str, Any]) -> None:
    assert dag["retries"].pop("approve") == [0, 30.0]
    assert set(map(tuple, dag["retries"].values())) == {(2, 30.0)}
    assert dag["retried"] == {**dict.fromkeys("1234", "fail"), "70": "retry", "75": "retry", "-9": "retry"}


def test_a_refusal_goes_to_a_person_only_where_one_may_accept_it(dag: dict[str, Any]) -> None:
    assert dag["refused"] == ["batch_job score: refused"]
    gates = {"gates": ["labels"]}
    assert dag["judged"] == {"0": ["publish"], "1": [None, 1], "2": [None, 2], "6": ["approve", gates]}


def test_only_the_approvers_are_asked_and_for_as_long_as_is_set(dag: dict[str, Any]) -> None:
    assert dag["asked"] == {
        "subject": "what?",
        "body": f"figures {{{{ 1 }}}}\n\n![Shares of the labels, of this day and of the day before]({PICTURE})"
        f"\n\n[The report in Airflow]({REPORT})",
        "options": ["Approve", "Reject"],
        "assigned_users": [{"id": "ada", "name": "ada"}, {"id": "bob", "name": "bob"}],
        "seconds": 90.0,
    }


def test_an_answer_is_carried_out_in_the_name_of_who_gave_it(dag: dict[str, Any]) -> None:
    said = {"by": "ada", "comment": "--seen"}
    rejected = ["reject", "--by=ada", "--comment=--seen"]
    assert dag["answered"] == {
        "approve": {"steps": [], "returned": said, "code": None},
        "reject": {"steps": [rejected], "returned": None, "code": 1},
        "expired": {"steps": [["reject", "--expired"]], "returned": None, "code": 1},
    }
    assert dag["committed"] == ["--accept=labels", "--accept=agreement", "--by=ada", "--comment=--seen"]


@pytest.mark.parametrize("seconds", ["0", "604800"])
def test_a_person_is_not_given_longer_than_the_scores_are_kept(seconds: str) -> None:
    with pytest.raises(ValueError, match=r"TANDEM_APPROVAL_SECONDS=.*: expected more than 0 and at most 518400, six"):
        spark_submit.approval_seconds({"TANDEM_APPROVAL_SECONDS": seconds})


def test_spark_is_started_only_for_a_day_that_is_not_scored_already(dag: dict[str, Any]) -> None:
    assert dag["started"] == {"0": False, "2": None, str(spark_submit.CHANGED): True}


def test_tasks_link_to_the_report_and_to_pages_whose_address_is_set(dag: dict[str, Any]) -> None:
    """The board's is not."""
    steps = ("plan", "judge", "approve", "commit", "publish", "report")
    assert dag["links"] == {
        **{name: {"Report": REPORT} for name in steps},
        "score": {"Report": REPORT, "Spark": "https://spark.example"},
        "complete": {},
    }


@pytest.mark.parametrize(
    ("board", "page", "framed"),
    [
        ("http://b/", "http", True),
        ("https://b/", "http", True),
        ("https://b/", "https", True),
        ("http://b/", "https", False),
    ],
)
def test_a_page_over_tls_frames_nothing_without(board: str, page: str, framed: bool) -> None:
    assert operating.may_frame(board, page) is framed


@pytest.mark.parametrize("address", ["javascript:alert(1)", "spark.example"])
def test_a_link_that_a_browser_cannot_open_is_named(address: str) -> None:
    with pytest.raises(ValueError, match=r"TANDEM_SPARK_URL=.*: expected an address that begins with http"):
        operating.link(operating.SPARK_URL, {"TANDEM_SPARK_URL": address})


def test_a_run_is_late_some_time_after_it_was_queued(dag: dict[str, Any]) -> None:
    # Partitioned runs have no logical date, and a deadline after nothing is never missed.
    assert dag["deadline"] == [["late", "DagRunQueuedAtDeadline", 5400.0, "dags.alerts.late"]]
    assert operating.late_seconds({}) == 4 * 3600
    with pytest.raises(ValueError, match="TANDEM_LATE_SECONDS=-1: expected more than 0"):
        operating.late_seconds({"TANDEM_LATE_SECONDS": "-1"})


def test_the_asset_scores_gets_an_event_of_the_day_with_what_was_published(dag: dict[str, Any]) -> None:
    assert dag["outlets"] == {"publish": ["scores"]}
    assert dag["published"]["event"] == [[DAY], {"rows": 7}]


def test_openlineage_hears_of_archive_table_columns_and_release(dag: dict[str, Any]) -> None:
    told = dag["published"]
    messages = {"namespace": "s3://bucket", "name": "chats"}
    ((given,), (table,)) = told["inputs"], told["outputs"]
    assert {name: given[name] for name in messages} == messages
    assert (table["namespace"], table["name"]) == ("file", "/state/scores")
    fields = table["facets"]["columnLineage"]["fields"]
    from_text = [{**messages, "field": name} for name in ("body", "reply")]
    assert [{name: it[name] for name in from_text[0]} for it in fields["label"]["inputFields"]] == from_text
    assert [it["field"] for it in fields["id"]["inputFields"]] == ["message_id"]
    # Nothing of a run that did not get so far.
    assert (told["release"], told["before"]) == (["tiny-1", "a day"], None)


def test_openlineage_is_off_unless_its_address_is_set(dag: dict[str, Any]) -> None:
    assert dag["openlineage"] == {"off": [True, 0], "on": True}


def test_it_is_paused_at_creation_and_never_catches_up(dag: dict[str, Any]) -> None:
    assert (dag["paused"], dag["catchup"]) == (True, False)
    assert dag["doc"]
    assert dag["tags"]


def test_days_run_beside_each_other_and_are_scored_one_at_a_time(dag: dict[str, Any]) -> None:
    assert dag["max_active_runs"] == 16
    assert {name for name, pool in dag["pools"].items() if pool == "tandem_device"} == {"score"}


def test_the_trigger_form_asks_for_a_day_and_offers_yesterday(dag: dict[str, Any]) -> None:
    assert (dag["day"]["schema"]["type"], dag["day"]["schema"]["format"]) == ("string", "date")
    assert date.fromisoformat(dag["day"]["value"]) in {datetime.now(UTC).date() - timedelta(days=n) for n in (1, 2)}


def test_the_trigger_form_has_a_typed_and_documented_field_for_each_choice(dag: dict[str, Any]) -> None:
    params = dag["params"]
    assert all(param["description"] for param in params.values())
    assert {name: param["value"] for name, param in params.items() if name != "day"} == {
        "model": None,
        "force": False,
        "int8": False,
        "accept": [],
    }
    assert params["force"]["schema"]["type"] == params["int8"]["schema"]["type"] == "boolean"
    assert params["accept"]["schema"]["items"]["enum"] == list(gate.ACCEPTABLE)
    assert params["accept"]["schema"]["examples"] == list(gate.ACCEPTABLE)


@pytest.mark.parametrize("name", ["", "a", "minilm-banking77", "-a", "a-", "A", "a b", "a" * 48, "a" * 49, "a\n"])
def test_the_trigger_form_takes_the_names_that_models_have(name: str) -> None:
    is_name = bool(manifest._NAME.fullmatch(name)) or not name
    # As jsonschema looks for a pattern.
    assert (re.search(operating.MODEL_OR_NONE, name) is not None) is is_name


def test_what_the_trigger_form_says_reaches_the_look_and_spark(dag: dict[str, Any]) -> None:
    flags = ["--force", "--accept=labels"]
    # Spark also hears which processes it is to end with.
    assert dag["chosen"] == {"look": flags, "args": flags, "ends": True, "int8": ["true", "true"]}


def test_each_task_says_what_to_do_when_it_fails(dag: dict[str, Any]) -> None:
    docs = dag["docs"]
    assert [name for name, said in docs.items() if "**When it fails**" not in said] == ["complete"]
    assert dag["owners"] == ["tandem"]


def test_it_runs_at_two_for_the_day_before(dag: dict[str, Any]) -> None:
    assert dag["timetable"] == {
        "class": "CronPartitionTimetable",
        "cron": "0 2 * * *",
        "offset": -1,
        "key": "%Y-%m-%d",
        "zone": "UTC",
    }


def test_spark_submit_gets_the_runtime_the_day_and_the_record(dag: dict[str, Any], environment: dict[str, str]) -> None:
    record = f"{environment['TANDEM_STATE']}/runs/{DAY}/{RUN}.json"
    assert dag["score"]["args"] == ["--ds", DAY, "--record", record]
    assert dag["score"]["application"] == spark_submit.APPLICATION
    assert dag["score"]["conf"] == spark_submit.spark_conf({})
    assert dag["score"]["connection"] == "spark_default"
    env = dag["score"]["env"]
    assert env["PYSPARK_PYTHON"] == env["PYSPARK_DRIVER_PYTHON"] == f"{sys.prefix}/bin/python"
    assert env["PATH"].startswith(f"{sys.prefix}/bin:")
    assert (Path(env["SPARK_HOME"]) / "bin" / "spark-submit").exists()
    assert env["PYTHONPATH"] == ""


def test_plan_waits_without_a_worker_slot(dag: dict[str, Any], environment: dict[str, str]) -> None:
    record = f"{environment['TANDEM_STATE']}/runs/{DAY}/{RUN}.json"
    waits = {"mode": "reschedule", "every": 7, "wait": spark_submit.WAIT_SECONDS}
    # The record pins the model for the steps after.
    assert dag["plan"] == {"ds": DAY, "record": record, "more": ["--model", "side"], **waits}


def test_a_plan_that_has_waited_long_enough_fails_with_what_it_looked_for(dag: dict[str, Any]) -> None:
    assert dag["timed_out"] == [spark_submit.NO_INPUT, ["no messages: it is not there"]]


def test_a_day_whose_messages_are_not_there_is_named_in_one_line_and_asked_for_again(
    dag: dict[str, Any], environment: dict[str, str], releases_dir: Path, release: Release, redis_url: str
) -> None:
    """The step as Airflow would run it, on the runtime's Python."""
    own = {**environment, "REDIS_URL": redis_url, "TANDEM_RELEASES": str(releases_dir)}
    ds, record = dag["plan"]["ds"], dag["plan"]["record"]

    def planned(day: str) -> tuple[int, str]:
        command = spark_submit.step_command("plan", day, record, own)
        done = subprocess.run(
            command, env=spark_submit.step_environment(own), capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr

    code, said = planned(ds)
    assert code == spark_submit.NO_INPUT
    assert said.startswith("batch_job plan: no messages: ")
    assert f"ds={DAY}" in said
    assert len(said.splitlines()) == 1
    assert planned("no day")[0] == 2
    folder = Path(own["TANDEM_STATE"], "messages", f"ds={DAY}")
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"id": "a", "text": "hello"}')
    assert planned(ds)[0] == 0
    assert Path(record).exists()


def test_the_dag_file_stays_thin() -> None:
    assert len((REPOSITORY / "dags" / "nightly_scoring.py").read_text().splitlines()) < 80

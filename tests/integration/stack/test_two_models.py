"""Nights of two models on the real scheduler, of which a server of OpenLineage's kind hears. A stack of its own: each
task makes events, and each night costs twice."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import redis
from deltalake import DeltaTable
from tandem_stack.airflow_api import AirflowApi, RunState
from tandem_stack.stack import DAG

from batch_job import run_record
from batch_job.identity import Tables
from batch_job.run_record import ARCHIVE, State
from shared_model.demo_messages import FIRST_DAY
from shared_model.objects import Location
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from tests.integration.stack import conftest
from tests.integration.stack.conftest import ACCEPTED, APPROVER, ROWS, RUN_SECONDS, SHIFTED, Up, write_day
from tests.realtime_service.conftest import eventually
from tests.realtime_service.rollout import tiny_releases
from tests.sink import Sink

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]

SIDE = "model-side."
STEPS = ("plan", "score", "judge", "publish", "report")


class Two(NamedTuple):
    """A stack whose nights are of two models, and the active release of each."""

    stack: Up
    release: Release
    side: Release


@pytest.fixture(scope="module")
def catalogue() -> Iterator[Sink]:
    with Sink() as sink:
        yield sink


@pytest.fixture(scope="module")
def two(own_environment: None, catalogue: Sink, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    folder = tmp_path_factory.mktemp("two")
    store = Store(folder / "releases")
    release, side = (tiny_releases.seal_counting(store, name) for name in ("tiny", "side"))
    pointer.promote(store, None, release.id)
    pointer.promote(store, None, side.id, "side")
    chosen = {"OPENLINEAGE_URL": catalogue.address, "TANDEM_NIGHTLY_MODELS": "side"}
    with conftest.up(folder, folder / "releases", **chosen) as running:
        yield Two(running, release, side)


@pytest.fixture(scope="module")
def night(two: Two) -> RunState:
    api = two.stack.api
    return api.wait_run(DAG, api.trigger(DAG, {"day": str(FIRST_DAY)}), 2 * RUN_SECONDS)


def tables(two: Two) -> tuple[Location, Location]:
    """The scores of each model."""
    state = two.stack.plan.state
    return state.scores_table, Tables.for_input(state, f"{ARCHIVE}, model side").scores


def scored(table: Location, day: str) -> tuple[int, set[str]]:
    """The rows of a day, and their releases."""
    rows = DeltaTable(str(table)).to_pyarrow_table(partitions=[("ds", "=", day)])
    return rows.num_rows, set(rows["release"].to_pylist())


def test_each_model_has_a_record_a_commit_and_an_epoch_of_its_own(two: Two, night: RunState) -> None:
    both = [f"{group}{name}" for group in ("", SIDE) for name in STEPS]
    asked = [f"{group}{name}" for group in ("", SIDE) for name in ("approve", "commit")]
    done = {**dict.fromkeys([*both, "complete"], "success"), **dict.fromkeys(asked, "skipped")}
    assert (night.state, night.tasks) == ("success", done)
    day, runs = str(FIRST_DAY), two.stack.plan.state.runs_dir / str(FIRST_DAY)
    own, side = tables(two)
    assert scored(own, day) == (ROWS, {two.release.id})
    assert scored(side, day) == (ROWS, {two.side.id})
    records = [run_record.read(runs / f"{night.run_id}{name}.json") for name in ("", "@side")]
    assert [(it.state, it.release) for it in records] == [
        (State.PUBLISHED, two.release.id),
        (State.PUBLISHED, two.side.id),
    ]
    with (
        RedisServer(two.stack.plan.state) as server,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        live = [client.hget(keys.epoch_pointer(it.id), "ds") for it in (two.release, two.side)]
    assert live == [day, day]
    notes = night.note.splitlines()
    assert [it.partition(", live as")[0] for it in notes] == [f"{day}: published", f"{day}: model side: published"]


def test_each_model_has_a_question_of_its_own_and_its_answer_is_for_no_other(two: Two, night: RunState) -> None:
    lines = (json.dumps({"id": f"m{number}", "text": SHIFTED[ACCEPTED]}) for number in range(ROWS))
    write_day(two.stack, ACCEPTED, "\n".join(lines))
    airflow, api = two.stack.plan.airflow, two.stack.api
    run_id = api.trigger(DAG, {"day": ACCEPTED})
    questions = [api.wait_question(DAG, run_id, f"{it}approve", 2 * RUN_SECONDS)["subject"] for it in ("", SIDE)]
    assert [it.partition(":")[0] for it in questions] == [f"ds={ACCEPTED}", f"ds={ACCEPTED}, model side"]
    person = AirflowApi(airflow.address, APPROVER, airflow.password(APPROVER))
    person.wait_ready(30)
    person.answer(DAG, run_id, "approve", "Approve", comment="fine")
    person.answer(DAG, run_id, f"{SIDE}approve", "Reject", comment="not yet")
    run = api.wait_run(DAG, run_id, 2 * RUN_SECONDS)
    # The day of one is not the day of both.
    assert (run.state, run.tasks["publish"], run.tasks["complete"]) == ("failed", "success", "upstream_failed")
    assert (run.tasks[f"{SIDE}approve"], run.tasks[f"{SIDE}publish"]) == ("failed", "upstream_failed")
    own, side = tables(two)
    assert scored(own, ACCEPTED) == (ROWS, {two.release.id})
    assert scored(side, ACCEPTED) == (0, set())
    assert f"{ACCEPTED}: model side: refused: rejected by {APPROVER}" in run.note


def test_a_run_whose_form_names_a_model_is_of_that_one_alone(two: Two, night: RunState) -> None:
    api = two.stack.api
    run = api.wait_run(DAG, api.trigger(DAG, {"day": str(FIRST_DAY), "model": "side"}), 2 * RUN_SECONDS)
    assert (run.state, run.tasks["publish"], run.tasks["complete"]) == ("success", "success", "success")
    assert {run.tasks[f"{SIDE}{name}"] for name in STEPS} == {"skipped"}
    assert "an earlier run had committed the day" in run.note


def told(catalogue: Sink, task: str) -> list[dict[str, Any]]:
    """The end of a task, as the server heard of it."""
    found = [json.loads(it.body) for it in list(catalogue.requests) if it.path == "/api/v1/lineage"]
    return [it for it in found if it["job"]["name"] == f"{DAG}.{task}" and it["eventType"] == "COMPLETE"]


@pytest.mark.parametrize("group", ["", SIDE])
def test_openlineage_hears_of_archive_table_columns_and_release(
    two: Two, night: RunState, catalogue: Sink, group: str
) -> None:
    eventually(lambda: told(catalogue, f"{group}publish"), every=0.2)
    event = told(catalogue, f"{group}publish")[0]
    (given,), (table,) = event["inputs"], event["outputs"]
    assert (given["namespace"], given["name"]) == ("file", str(two.stack.plan.state.messages_dir))
    assert (table["namespace"], table["name"]) == ("file", str(tables(two)[bool(group)]))
    fields = table["facets"]["columnLineage"]["fields"]
    followed = {name: [it["field"] for it in fields[name]["inputFields"]] for name in ("id", "label", "score")}
    assert followed == {"id": ["id"], "label": ["text"], "score": ["text"]}
    facet = event["run"]["facets"]["tandem_release"]
    assert (facet["release"], facet["day"]) == ((two.side if group else two.release).id, str(FIRST_DAY))
    # A run of the DAG's.
    assert event["run"]["facets"]["parent"]["job"]["name"] == DAG

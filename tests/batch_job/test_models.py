"""A night of another model than the default one has tables, attempts and an epoch of its own."""

from dataclasses import replace
from pathlib import Path

import pytest
import redis
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from batch_job import identity
from batch_job.identity import Tables
from batch_job.run_record import ARCHIVE, RunRecord, State
from batch_job.scoring.options import ScoringOptions
from batch_job.settings import InputSettings, NightlySettings
from batch_job.steps.plan import plan_run
from batch_job.steps.publish import publish_run
from batch_job.tables.fence import Fence, latest_token
from shared_model.errors import JobError, ReleaseError
from shared_model.redis_store import keys
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, attempt, message, planned, write_day
from tests.realtime_service.rollout import tiny_releases

SIDE = InputSettings(nightly_model="side")


@pytest.fixture
def state(tmp_path: Path, redis_url: str) -> StateSettings:
    """With releases of its own."""
    return StateSettings(state=tmp_path / "state", releases=str(tmp_path / "releases"), redis_url=redis_url)


@pytest.fixture
def main(state: StateSettings, client: "redis.Redis") -> Release:
    store = Store.from_settings(state)
    sealed = tiny_releases.seal(store, "main", 1)
    pointer.promote(store, client, sealed.id)
    return sealed


@pytest.fixture
def side(state: StateSettings, client: "redis.Redis", main: Release) -> Release:
    """A release of the model "side", promoted beside the default one."""
    store = Store.from_settings(state)
    sealed = tiny_releases.seal(store, "side", 3)
    pointer.promote(store, client, sealed.id, "side")
    return sealed


def test_a_model_has_tables_of_its_own_and_the_default_one_keeps_those_of_today(tmp_path: Path) -> None:
    state = StateSettings(state=tmp_path, scores="/shared")
    assert identity.input_name(state, InputSettings()) == ARCHIVE
    assert Tables.for_input(StateSettings(state=tmp_path)).scores == tmp_path / "scores"
    named = identity.input_name(state, SIDE)
    assert (named, identity.model_of(named), identity.model_of(ARCHIVE)) == (f"{ARCHIVE}, model side", "side", "")
    # TANDEM_SCORES is the default model's.
    assert Tables.for_input(state, named).scores.parent.name.startswith("the-default-archive-model-side-")
    own = InputSettings(nightly_model="side", input_path="/x/{ds}", input_text="body")
    assert identity.input_name(state, own) == "/x/{ds} (body), model side"


def test_a_plan_pins_a_release_of_the_model(
    state: StateSettings, client: "redis.Redis", main: Release, side: Release
) -> None:
    write_day(state, [message(0, "hello")])
    run = plan_run(state, client, DAY, "run", SIDE)
    assert (run.release, run.input.identity) == (side.id, f"{ARCHIVE}, model side")
    assert planned(state, client).release == main.id
    with pytest.raises(ReleaseError, match="model unknown has no active release"):
        plan_run(state, client, DAY, "run", InputSettings(nightly_model="unknown"))
    with pytest.raises(JobError, match="model main is the default one, whose tables have no name"):
        plan_run(state, client, DAY, "run", InputSettings(nightly_model="main"))


def test_attempts_with_one_model_do_not_supersede_those_with_another(client: "redis.Redis") -> None:
    default, other = Fence.take(client, DAY, -1), Fence.take(client, DAY, -1, "side")
    default.check()
    other.check()
    assert (latest_token(client, DAY), latest_token(client, DAY, "side")) == (default.token, other.token) == (1, 1)


def test_a_day_is_scored_and_published_by_each_model_for_itself(
    spark: SparkSession, state: StateSettings, client: "redis.Redis", options: ScoringOptions, side: Release
) -> None:
    write_day(state, [message(number, "where is my card") for number in range(3)])
    runs = {"": planned(state, client), "side": plan_run(state, client, DAY, "other", SIDE)}
    done: dict[str, RunRecord] = {}
    for name, run in runs.items():
        own = replace(options, releases_root=state.releases_root, release=run.release)
        scoring = attempt(spark, state, client, own, run)
        done[name] = publish_run(state, NightlySettings(), client, replace(run, state=State.COMMITTED, scoring=scoring))
    for name, run in done.items():
        held = DeltaTable(str(Tables.for_input(state, run.input.identity).scores)).to_pyarrow_table()
        assert (set(held["release"].to_pylist()), held.num_rows) == ({runs[name].release}, 3)
        assert (run.publication and run.publication.live, run.state) == (True, State.PUBLISHED)
        assert client.hget(keys.epoch_pointer(run.release), "epoch") == f"{DAY}.1".encode()
    # The metrics of the last night are the default model's.
    assert runs[""].release in (client.get(keys.last_run()) or b"").decode()

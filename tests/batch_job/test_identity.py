"""Which input a day is of, and in which tables its history lies."""

from pathlib import Path

import pytest

from batch_job import identity
from batch_job.identity import Tables
from batch_job.inputs.delta import open_table
from batch_job.run_record import ARCHIVE
from batch_job.settings import InputSettings
from batch_job.tables import table
from shared_model import settings
from shared_model.errors import JobError
from shared_model.settings import StateSettings
from tests.batch_job.shards import written


def named(state: StateSettings, **variables: str) -> str:
    return identity.input_name(
        state, settings.load(InputSettings, {f"TANDEM_INPUT_{k}": v for k, v in variables.items()})
    )


@pytest.fixture
def state(tmp_path: Path) -> StateSettings:
    return StateSettings(state=tmp_path / "state{1}")


def test_the_archive_of_the_state_is_the_default_however_it_is_named(state: StateSettings) -> None:
    archive = state.state / "messages"
    literally = str(archive).replace("{", "{{").replace("}", "}}")
    assert named(state) == named(state, TEXT="body") == named(state, PATH=f"{literally}/") == ARCHIVE
    assert identity.input_name(StateSettings(state=state.state, messages=str(archive)), InputSettings()) == ARCHIVE


def test_an_input_is_known_by_where_its_days_are_and_which_texts_are_read(
    state: StateSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert named(state, PATH="own") == named(state, PATH=f"{tmp_path}/own/") == f"{tmp_path}/own/ds={{ds}}"
    assert named(state, PATH="own", PARTITION="day") == f"{tmp_path}/own/day={{ds}}"
    assert named(state, PATH="s3a://b/{year}/", PARTITION="day") == "s3a://b/{year}"
    assert named(state, PATH="own/{ds}", TEXT="body", PAIR="reply") == f"{tmp_path}/own/{{ds}} (body and reply)"
    # The format may change.
    assert named(state, PATH="own", FORMAT="csv", ID="key") == named(state, PATH="own")
    messages = StateSettings(state=state.state, messages=str(tmp_path / "own"))
    assert identity.input_name(messages, InputSettings()) == f"{tmp_path}/own/ds={{ds}}"


def test_every_input_has_tables_of_its_own_but_where_one_is_named(state: StateSettings) -> None:
    mine, yours = Tables.for_input(state, "/data/My Chats/ds={ds}"), Tables.for_input(state, "/data/my-chats/{ds}")
    assert (mine.scores.name, mine.quarantine.name) == ("scores", "quarantine")
    assert mine.scores.parent.parent == yours.scores.parent.parent == state.state / "inputs"
    assert mine.scores.parent.name.startswith("data-my-chats-")
    assert yours.scores.parent.name.startswith("data-my-chats-")
    assert mine != yours
    assert Tables.for_input(state, ARCHIVE) == Tables(state.state / "scores", state.state / "quarantine")
    everywhere = StateSettings(state=state.state, scores="/shared")
    assert Tables.for_input(everywhere, "/x/{ds}") == Tables(Path("/shared"), state.state / "quarantine")
    assert Tables.all(state) == [Tables.for_input(state)]
    mine.scores.mkdir(parents=True)
    assert Tables.all(state) == [Tables.for_input(state), mine]


def test_no_input_replaces_the_day_of_another_under_one_table(tmp_path: Path) -> None:
    written.commit(tmp_path, "2026-01-14", ["yes"], **{table.INPUT: ARCHIVE})
    said = rf"holds ds=2026-01-14 of {ARCHIVE}, which scores of /mine/ds=\{{ds\}} must not replace; .* TANDEM_SCORES"
    with pytest.raises(JobError, match=said):
        written.commit(tmp_path, "2026-01-14", ["no"], token=2, **{table.INPUT: "/mine/ds={ds}"})
    assert open_table(tmp_path).version() == 1
    written.commit(tmp_path, "2026-01-14", ["no"], token=3, **{table.INPUT: ARCHIVE})
    # A day committed by an earlier version may be of any input.
    written.commit(tmp_path, "2026-01-15", ["yes"])
    written.commit(tmp_path, "2026-01-15", ["yes"], token=2, **{table.INPUT: "/mine/ds={ds}"})
    assert table.inputs(open_table(tmp_path)) == {"2026-01-14": ARCHIVE, "2026-01-15": "/mine/ds={ds}"}

"""The origin of a run's scores, as catalogues of data hear of it."""

from dataclasses import replace

import pytest

from batch_job.reporting import lineage
from batch_job.run_record import Columns, State
from batch_job.shards import schemas
from tests.batch_job.test_run_record import PLANNED


@pytest.mark.parametrize("state", list(State))
def test_each_column_of_the_table_follows_from_the_input_or_from_the_run(state: State) -> None:
    columns = Columns("message_id", "body", "reply")
    run = replace(PLANNED, state=state, input=replace(PLANNED.input, columns=columns))
    found = lineage.document(run, "s3://bucket/scores")
    follows = found["columns"]
    assert isinstance(follows, dict)
    assert {*follows, "release", "precision", "scored_at"} == set(schemas.SCORES.names)
    assert (follows["id"], follows["label"]) == (["message_id"], ["body", "reply"])
    assert (found["release"], found["day"]) == (run.release, run.ds)
    committed = state in (State.COMMITTED, State.UNCHANGED, State.PUBLISHED)
    assert found["scores"] == ("s3://bucket/scores" if committed else "")


@pytest.mark.parametrize(
    ("identity", "folder", "archive"),
    [
        ("the default archive", "/state/messages/ds=2026-01-14", "/state/messages"),
        ("the default archive, model side", "s3a://bucket/messages/ds=2026-01-14", "s3a://bucket/messages"),
        ("/chats/{year}/{month}/{day}", "/chats/2026/01/14", "/chats"),
        ("s3://bucket/chats/day-{ds}.d (body), model side", "s3://bucket/chats/day-2026-01-14.d", "s3://bucket/chats"),
        ("/tables/chats/ds={ds} (body and reply)", "/tables/chats", "/tables/chats"),
    ],
)
def test_all_days_of_an_input_are_one_data_set(identity: str, folder: str, archive: str) -> None:
    run = replace(PLANNED, input=replace(PLANNED.input, identity=identity, folder=folder))
    assert lineage.document(run, "/scores")["input"] == archive

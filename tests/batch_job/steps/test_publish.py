"""Published epochs only move forward, and publishing again never leaves a moment without the one that answers."""

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from rbloom import Bloom

from batch_job import progress, run_record
from batch_job.identity import Tables
from batch_job.reporting import plain_text
from batch_job.run_record import ARCHIVE, RunRecord, Scoring, State
from batch_job.settings import NightlySettings
from batch_job.shards import schemas
from batch_job.shards.shard_files import FileReport, Target, write_file
from batch_job.steps import publish as publishing
from batch_job.steps import rollback
from batch_job.tables import table
from batch_job.tables.fence import Fence
from protos.scoring.v1.storage_pb2 import PublishedScore
from shared_model.errors import JobError
from shared_model.published.epochs import Epoch, Outcome, keys_of, live_keys
from shared_model.published.message_ids import FIND, question
from shared_model.published.publish import key_position, publish
from shared_model.redis_store import keys
from shared_model.releases.store import Release
from shared_model.settings import StateSettings
from tests.batch_job.conftest import DAY, message, planned, write_day
from tests.batch_job.shards import written
from tests.shared_model import further_heads

NIGHTLY = NightlySettings()

NEXT = "2026-01-15"
NEWER_DAY = f"a newer day, {NEXT} of {ARCHIVE}, is committed; `publish --force` makes this one live all the same"


def encoding_key(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.fixture
def commit(state: StateSettings, client: "redis.Redis", release: Release):  # type: ignore[no-untyped-def]
    """Commits rows under a token, as a run that scored them would; returns that run."""

    def run(
        token: int, numbers: Sequence[int], ds: str = DAY, releases: tuple[str, ...] = (), identity: str = ARCHIVE
    ) -> RunRecord:
        write_day(state, [message(number, "x") for number in range(len(numbers))], ds)
        count = len(numbers)
        columns = {
            "id": [str(number) for number in range(count)],
            "text_hash": ["00"] * count,
            "label": [release.labels[1]] * count,
            "score": [0.75] * count,
            "release": releases or [release.id] * count,
            "precision": ["bf16"] * count,
            "scored_at": [datetime.now(UTC)] * count,
            "encoding_key": [encoding_key(number) for number in numbers],
            "tokens": [3] * count,
            "truncated": [False] * count,
            "top_k": [
                [
                    {"label": release.labels[1], "score": 0.75},
                    {"label": release.labels[0], "score": 0.25},
                ]
            ]
            * count,
            "vector": [None] * count,
            "abstained": [None] * count,
            "heads": [further_heads.columns(release.heads)] * count,
        }
        batch = pa.RecordBatch.from_pydict(columns, schema=schemas.SCORES)
        folder = Tables.for_input(state, identity).scores
        file = FileReport(*write_file(Target(str(folder), ds, "plan", token), schemas.SCORES, [batch]))
        version = table.replace_partition(folder, ds, [file], token, lambda: None, {})
        scoring = Scoring(token, "plan", version, count, {}, rows_per_second=12.5)
        run = planned(state, client, ds)
        source = replace(run.input, identity=identity)
        return replace(run, state=State.COMMITTED, token=token, scoring=scoring, input=source)

    return run


def pointer(client: "redis.Redis", release: Release) -> str:
    found = client.hget(keys.epoch_pointer(release.id), "epoch")
    return found.decode() if found else ""


def test_a_committed_partition_answers_from_redis(  # type: ignore[no-untyped-def]
    commit, state: StateSettings, client: "redis.Redis", release: Release
) -> None:
    run = publishing.publish_run(state, NIGHTLY, client, commit(3, range(50)))
    assert run.state is State.PUBLISHED
    assert run.publication is not None
    assert (run.publication.epoch, run.publication.keys, run.publication.moved) == (f"{DAY}.3", 50, True)
    raw = client.hget(keys.epoch_scores(release.id, f"{DAY}.3"), encoding_key(7))
    score = PublishedScore.FromString(raw)
    assert (list(score.labels), list(score.scores), score.tokens) == ([1, 0], [0.75, 0.25], 3)
    bloom = Bloom.load_bytes(client.get(keys.epoch_filter(release.id, f"{DAY}.3")), key_position)
    assert all(encoding_key(number) in bloom for number in range(50))
    assert b'"rows": 50, "rows_per_second": 12.5' in client.get(keys.last_run())


def test_publishing_again_changes_nothing(commit, state: StateSettings, client: "redis.Redis") -> None:  # type: ignore[no-untyped-def]
    run = commit(3, range(50))
    publishing.publish_run(state, NIGHTLY, client, run)
    told = client.get(keys.last_run())
    again = publishing.publish_run(state, NIGHTLY, client, run).publication
    assert again is not None
    assert (again.moved, again.live, again.keys) == (False, True, 50)
    assert client.get(keys.last_run()) == told


def test_the_pointer_only_moves_forward(  # type: ignore[no-untyped-def]
    commit, state: StateSettings, client: "redis.Redis", release: Release
) -> None:
    scores = [(encoding_key(number), PublishedScore(labels=[0], scores=[1.0])) for number in range(5)]
    publish(client, Epoch(release.id, "bf16", NEXT, 3), scores)
    older = publishing.publish_run(state, NIGHTLY, client, commit(9, range(5), DAY)).publication
    assert older is not None
    assert (older.moved, older.live, pointer(client, release)) == (False, False, "2026-01-15.3")
    assert older.why == "a newer one, epoch 2026-01-15.3, is; `publish --force` makes this one live all the same"
    assert not client.exists(keys.epoch_scores(release.id, f"{DAY}.9"))
    publishing.publish_run(state, NIGHTLY, client, commit(4, range(6), "2026-01-15"))
    assert pointer(client, release) == "2026-01-15.4"
    # The epoch before is kept for a rollback.
    assert client.hlen(keys.epoch_scores(release.id, "2026-01-15.3")) == 5


def test_control_the_pointer_refuses_by_day_before_token(client: "redis.Redis", release: Release) -> None:
    """Epochs published out of order, past the table's own rule: the script itself holds them off."""
    scores = [(encoding_key(1), PublishedScore(labels=[0], scores=[1.0]))]
    moved = [
        publish(client, Epoch(release.id, "bf16", ds, token), scores).outcome
        for ds, token in (("2026-01-15", 2), ("2026-01-14", 9), ("2026-01-15", 1), ("2026-01-15", 2), ("2026-01-15", 3))
    ]
    assert moved == ["moved", "older", "older", "standing", "moved"]


def test_publishing_the_live_epoch_again_never_leaves_a_moment_without_it(
    client: "redis.Redis", redis_url: str, release: Release
) -> None:
    epoch = Epoch(release.id, "bf16", DAY, 1)
    scores = [(encoding_key(n), PublishedScore(labels=[0], scores=[1.0])) for n in range(20_000)]
    publish(client, epoch, scores)
    done, missed, looked = threading.Event(), [], []

    def look() -> None:
        with redis.Redis.from_url(redis_url) as reader:
            while not done.is_set():
                pipe = reader.pipeline()
                pipe.hmget(keys.epoch_scores(release.id, epoch.name), [encoding_key(0), encoding_key(19_999)])
                pipe.exists(keys.epoch_filter(release.id, epoch.name), keys.epoch_facts(release.id, epoch.name))
                found, present = pipe.execute()
                looked.append(1)
                if None in found or present != 2:
                    missed.append((found, present))

    watcher = threading.Thread(target=look)
    watcher.start()
    deadline = time.monotonic() + 30
    while len(looked) < 50 and time.monotonic() < deadline:
        assert publish(client, epoch, scores).outcome is Outcome.ALREADY_LIVE
    done.set()
    watcher.join()
    assert len(looked) >= 50
    assert missed == []
    assert live_keys(client, epoch) == 20_000


def test_a_live_epoch_that_lost_keys_is_made_whole(  # type: ignore[no-untyped-def]
    commit, state: StateSettings, client: "redis.Redis", release: Release
) -> None:
    run = commit(3, range(50))
    publishing.publish_run(state, NIGHTLY, client, run)
    client.hdel(keys.epoch_scores(release.id, f"{DAY}.3"), encoding_key(7))
    publishing.publish_run(state, NIGHTLY, client, run)
    assert live_keys(client, Epoch(release.id, "bf16", DAY, 3)) == 50


def test_an_older_day_is_published_where_a_person_insists(  # type: ignore[no-untyped-def]
    commit, state: StateSettings, client: "redis.Redis", release: Release
) -> None:
    newer = commit(3, range(5), "2026-01-15")
    publishing.publish_run(state, NIGHTLY, client, newer)
    older = publishing.publish_run(state, NIGHTLY, client, commit(9, range(7), DAY), force=True).publication
    assert older is not None
    assert (older.moved, older.live, older.keys, pointer(client, release)) == (True, True, 7, f"{DAY}.9")
    # A retry of the newer day does not undo what a person did.
    assert plain_text.publication(publishing.publish_run(state, NIGHTLY, client, newer)).startswith(
        "not live: a person went back from it"
    )
    assert pointer(client, release) == f"{DAY}.9"


@pytest.mark.parametrize("new_release", [False, True])
def test_an_older_day_does_not_publish_itself_where_redis_knows_of_no_newer_one(  # type: ignore[no-untyped-def]
    commit, state: StateSettings, client: "redis.Redis", release: Release, new_release: bool
) -> None:
    """Its memory was lost, or the newer day is another release's."""
    other = ("other-0123456789ab",) * 5 if new_release else ()
    commit(3, range(5), NEXT, other)
    older = commit(9, range(7), DAY)
    run = publishing.publish_run(state, NIGHTLY, client, older)
    assert run.state is State.COMMITTED
    assert plain_text.status(run) == "committed, not live"
    assert plain_text.publication(run) == f"not live: {NEWER_DAY}"
    assert pointer(client, release) == ""
    insisted = publishing.publish_run(state, NIGHTLY, client, older, force=True).publication
    assert insisted is not None
    assert (insisted.live, insisted.keys, pointer(client, release)) == (True, 7, f"{DAY}.9")
    # A live epoch is not published again.
    again = publishing.publish_run(state, NIGHTLY, client, older)
    assert plain_text.status(again) == f"published, live as epoch {DAY}.9"
    assert plain_text.publication(again).startswith(f"live already as epoch {DAY}.9, with 7 keys")


def test_a_newer_day_of_another_input_is_named_and_gives_way_to_a_person(  # type: ignore[no-untyped-def]
    commit, state: StateSettings, client: "redis.Redis", release: Release
) -> None:
    theirs = publishing.publish_run(state, NIGHTLY, client, commit(3, range(5), NEXT))
    run_record.write(state.runs_dir / NEXT / "theirs.json", theirs)
    mine = commit(4, range(7), DAY, identity="/mine/{ds}")
    kept_back = publishing.publish_run(state, NIGHTLY, client, mine)
    newer = f"a newer one, epoch {NEXT}.3, of {ARCHIVE}, is; `publish --force` makes this one live all the same"
    assert (plain_text.status(kept_back), plain_text.publication(kept_back)) == (
        "committed, not live",
        f"not live: {newer}",
    )
    insisted = publishing.publish_run(state, NIGHTLY, client, mine, force=True)
    assert (insisted.state, pointer(client, release)) == (State.PUBLISHED, f"{DAY}.4")
    assert insisted.publication
    assert insisted.publication.keys == 7


def test_a_newer_day_without_messages_keeps_none_from_being_published(  # type: ignore[no-untyped-def]
    commit, state: StateSettings, client: "redis.Redis", release: Release
) -> None:
    commit(3, [], NEXT)
    drained = written.file(state.scores_table, written.batch(["a"], ["yes"]), ds="2026-01-16", source=schemas.DEFERRED)
    table.add_deferred(state.scores_table, "2026-01-16", lambda _: drained)
    publishing.publish_run(state, NIGHTLY, client, commit(9, range(7), DAY))
    assert pointer(client, release) == f"{DAY}.9"


def test_a_rolled_back_day_answers_again_only_when_it_was_scored_again(  # type: ignore[no-untyped-def]
    commit, state: StateSettings, client: "redis.Redis", release: Release
) -> None:
    publishing.publish_run(state, NIGHTLY, client, commit(1, range(5), DAY))
    bad = commit(1, range(5), "2026-01-15")
    publishing.publish_run(state, NIGHTLY, client, bad)
    # An attempt that has begun by then is of the same doubtful origin.
    assert Fence.take(client, "2026-01-15", 1).token == 2
    done = rollback.roll_back(state.scores_table, NIGHTLY, client, release.id, "2026-01-15")
    assert (done.was, done.now, pointer(client, release)) == ("2026-01-15.1", f"{DAY}.1", f"{DAY}.1")
    retried = publishing.publish_run(state, NIGHTLY, client, bad).publication
    begun = publishing.publish_run(state, NIGHTLY, client, commit(2, range(5), "2026-01-15")).publication
    assert [each.live for each in (retried, begun) if each] == [False, False]
    assert not client.exists(
        keys.epoch_scores(release.id, "2026-01-15.1"), keys.epoch_scores(release.id, "2026-01-15.2")
    )
    scored_again = commit(Fence.take(client, "2026-01-15", 2).token, range(5), "2026-01-15")
    publishing.publish_run(state, NIGHTLY, client, scored_again)
    assert pointer(client, release) == "2026-01-15.3"


def test_each_message_finds_the_text_that_it_had(  # type: ignore[no-untyped-def]
    commit, state: StateSettings, client: "redis.Redis", release: Release
) -> None:
    numbers = [7, 5, 7, 9, 5, 7] * 50
    publishing.publish_run(state, NIGHTLY, client, commit(1, numbers))
    epoch = f"{DAY}.1"
    blocks = int(client.hget(keys.epoch_facts(release.id, epoch), "id_blocks"))
    scores, index = keys.epoch_scores(release.id, epoch), keys.epoch_ids(release.id, epoch)
    asked = question(scores, index, [str(row) for row in range(len(numbers) + 1)], blocks)
    # Each text's score was the same one; a value of its own tells which text was found.
    client.hset(scores, mapping={encoding_key(number): str(number) for number in set(numbers)})
    assert client.register_script(FIND)(args=asked) == [*(str(number).encode() for number in numbers), None]


def test_where_memory_is_short_the_most_frequent_texts_go_in_and_the_rest_is_reported(  # type: ignore[no-untyped-def]
    commit, state: StateSettings, client: "redis.Redis", release: Release
) -> None:
    often, rare = list(range(900, 1000)), list(range(900))
    narrow = NightlySettings(publish_megabytes=0.08)
    run = publishing.publish_run(state, narrow, client, commit(1, rare + often * 9))
    done = run.publication
    assert done is not None
    epoch = f"{DAY}.1"
    stored = client.hkeys(keys.epoch_scores(release.id, epoch))
    assert 100 < done.keys == len(stored) < 1000
    assert {encoding_key(number) for number in often} <= set(stored)
    assert done.left_out == 1000 - done.keys
    assert done.covered == pytest.approx((done.keys + 8 * 100) / 1800, abs=1e-4)
    assert sum(client.memory_usage(name, samples=0) for name in keys_of(release.id, epoch)) <= 80_000
    said = f"{done.left_out} rarer texts left out for memory, those in it cover {done.covered:.1%} of the rows"
    assert said in plain_text.publication(run)
    assert f"{done.bytes / 1e6:.1f} MB of at most 0.08 MB;" in plain_text.publication(run)
    assert "of at most" not in plain_text.publication(replace(run, publication=replace(done, bound=0)))
    again = publishing.publish_run(state, narrow, client, run).publication
    assert again is not None
    assert (again.left_out, again.covered, again.moved) == (done.left_out, done.covered, False)


def test_long_publishing_says_how_many_keys_are_written(  # type: ignore[no-untyped-def]
    commit, state: StateSettings, client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()

    def slowly(*arguments: Any) -> Iterator[tuple[bytes, PublishedScore]]:
        found = real(*arguments)
        yield from itertools.islice(found, 20)
        assert told.wait(10)
        yield from found

    real = publishing.scores_of
    monkeypatch.setattr(publishing, "scores_of", slowly)
    monkeypatch.setattr(publishing, "watched", partial(progress.watched, seconds=0.01))
    monkeypatch.setattr(progress, "log", lambda line: "publishing: 20 of 50 keys (40%) in" in line and told.set())
    run = publishing.publish_run(state, NIGHTLY, client, commit(1, range(50)))
    assert run.publication is not None
    assert run.publication.keys == 50


def test_a_run_that_was_not_scored_is_refused(state: StateSettings, client: "redis.Redis") -> None:
    write_day(state, [message(0, "x")])
    with pytest.raises(JobError, match="is planned, so there is nothing to publish; score it first"):
        publishing.publish_run(state, NIGHTLY, client, planned(state, client))


def test_a_partition_of_two_releases_is_refused(  # type: ignore[no-untyped-def]
    commit, state: StateSettings, client: "redis.Redis", release: Release
) -> None:
    mixed = (release.id, "other-0123456789ab")
    with pytest.raises(JobError, match="holds scores of release"):
        publishing.publish_run(state, NIGHTLY, client, commit(1, range(2), releases=mixed))


def test_a_table_that_does_not_hold_the_day_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"holds no ds=2026-01-14; score it first"):
        publishing.committed_partition(tmp_path, DAY)

"""The release of a scorer: by name, id, path or URL, of the newer pointer; chosen once, and without a trace."""

from pathlib import Path

import pytest
import redis

import batch_job
from shared_model.errors import BadInput, ReleaseError, UnknownRelease
from shared_model.releases import pointer
from shared_model.releases.store import Release, Store
from tests.realtime_service.rollout import tiny_releases


def test_a_release_is_named_by_its_model_its_id_its_place_or_that_of_its_store(store: Store, tiny: Release) -> None:
    other = tiny_releases.seal(store, "other")
    pointer.promote(store, None, other.id, "other")
    root = store.files.root
    named = {
        "": tiny,
        "tiny": tiny,
        tiny.id: tiny,
        "other": other,
        other.id: other,
        root: tiny,
        f"{root}/other/{other.id}/": other,
        f"file://{root}": tiny,
        f"file://{root}/other/{other.id}": other,
    }
    assert {given: batch_job.scorer(given).release for given in named} == {it: found.id for it, found in named.items()}
    assert batch_job.scorer(Path(root, "other", other.id)).release == other.id
    assert {batch_job.scorer(f"{root}/other/{other.id}").options.releases_root} == {root}


def test_a_path_may_be_relative(store: Store, tiny: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(store.files.root).parent)
    assert batch_job.scorer("./releases").options.releases_root == store.files.root
    assert batch_job.scorer(Path("releases")).release == tiny.id


def test_a_scorer_keeps_its_release_while_its_model_moves_on(store: Store, tiny: Release) -> None:
    first = batch_job.scorer("tiny")
    newer = tiny_releases.seal(store, "tiny", favourite=3)
    pointer.promote(store, None, newer.id)
    assert first.release == tiny.id
    assert batch_job.scorer("tiny").release == newer.id


def test_with_redis_the_newer_of_both_pointers_counts(
    store: Store, tiny: Release, redis_client: "redis.Redis", redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = tiny_releases.seal(store, "newer")
    file = Path(store.files.root, pointer.FILE)
    before = file.read_bytes()
    pointer.promote(store, redis_client, newer.id)
    file.write_bytes(before)
    assert batch_job.scorer().release == tiny.id
    monkeypatch.setenv("REDIS_URL", redis_url)
    assert batch_job.scorer().release == newer.id
    # A store that is named has nothing to do with this Redis.
    assert batch_job.scorer(store.files.root).release == tiny.id
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1")
    assert batch_job.scorer().release == tiny.id


def test_nothing_is_written(tiny: Release, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    batch_job.scorer("tiny").score(frame_of("card"))
    assert sorted(tmp_path.rglob("*")) == before


def frame_of(*texts: str) -> object:
    import pyarrow as pa

    return pa.table({"text": texts})


def test_what_cannot_be_pinned_is_named(store: Store, tiny: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ReleaseError, match="model nope has no active release"):
        batch_job.scorer("nope")
    with pytest.raises(UnknownRelease, match="release tiny-000000000000 is not in"):
        batch_job.scorer("tiny-000000000000")
    with pytest.raises(ReleaseError, match="no release is active in /nowhere: "):
        batch_job.scorer("/nowhere")
    with pytest.raises(BadInput, match=r"pair: is set, but release tiny-\w+ reads single texts"):
        batch_job.scorer(pair="answer")
    monkeypatch.setenv("TANDEM_REVOKED", tiny.id)
    with pytest.raises(ReleaseError, match="revoked"):
        batch_job.scorer()

"""The pointer says which release is active: in Redis, with a file twin for when Redis is down."""

from pathlib import Path

import pytest
import redis

from shared_model import keys
from shared_model.errors import ReleaseError, StoreUnavailable
from shared_model.releases import pointer
from shared_model.releases.pointer import Pointer

OLD, NEW = "small-000000000000", "small-111111111111"


@pytest.fixture
def no_redis() -> "redis.Redis":
    """A client whose server is not there: nothing listens on port 1."""
    return redis.Redis.from_url("redis://127.0.0.1:1", socket_timeout=1.0)


def test_nothing_is_active_at_first(tmp_path: Path, redis_client: "redis.Redis") -> None:
    with pytest.raises(ReleaseError, match="no release is active: run"):
        pointer.get_active(tmp_path, redis_client)


def test_what_is_set_is_read_from_either_twin(tmp_path: Path, redis_client: "redis.Redis") -> None:
    pointer.set_active(tmp_path, redis_client, OLD)
    written = pointer.set_active(tmp_path, redis_client, NEW)
    assert written == Pointer(2, NEW)
    assert pointer.get_active(tmp_path, redis_client) == written
    assert pointer.get_active(tmp_path, None) == written
    assert pointer.get_active(tmp_path / "elsewhere", redis_client) == written


def test_newest_version_wins_in_either_direction(tmp_path: Path, redis_client: "redis.Redis") -> None:
    pointer.set_active(tmp_path, redis_client, OLD)
    redis_client.hset(keys.release_pointer(), mapping={"version": 7, "active": NEW})
    assert pointer.get_active(tmp_path, redis_client).active == NEW
    redis_client.hset(keys.release_pointer(), mapping={"version": 0, "active": NEW})
    assert pointer.get_active(tmp_path, redis_client).active == OLD


def test_a_promotion_passes_the_newest_twin(tmp_path: Path, redis_client: "redis.Redis") -> None:
    redis_client.hset(keys.release_pointer(), mapping={"version": 7, "active": OLD})
    assert pointer.set_active(tmp_path, redis_client, NEW).version == 8


def test_without_redis_the_file_answers(tmp_path: Path, no_redis: "redis.Redis") -> None:
    pointer.set_active(tmp_path, None, OLD)
    assert pointer.get_active(tmp_path, no_redis).active == OLD


def test_a_promotion_redis_did_not_hear_of_says_so(tmp_path: Path, no_redis: "redis.Redis") -> None:
    with pytest.raises(StoreUnavailable, match="Redis was not told"):
        pointer.set_active(tmp_path, no_redis, NEW)
    assert pointer.get_active(tmp_path, None).active == NEW


@pytest.mark.parametrize("contents", ["", "{", "[]", "{}", '"text"', '{"version": "x", "active": "a"}', "\0\0\0\0"])
def test_damaged_twins_are_named_and_a_promotion_mends_them(
    tmp_path: Path, redis_client: "redis.Redis", contents: str
) -> None:
    (tmp_path / pointer.FILE).write_text(contents)
    with pytest.raises(ReleaseError, match=r"ACTIVE\.json is damaged; promote"):
        pointer.get_active(tmp_path, redis_client)
    redis_client.hset(keys.release_pointer(), mapping={"version": "x"})
    with pytest.raises(ReleaseError, match="damaged; promote"):
        pointer.get_active(tmp_path / "elsewhere", redis_client)
    pointer.set_active(tmp_path, redis_client, NEW)
    assert pointer.get_active(tmp_path, redis_client) == Pointer(1, NEW)


def test_only_a_release_id_can_be_active(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="is not a release id"):
        pointer.set_active(tmp_path, None, "../../elsewhere")
    assert list(tmp_path.iterdir()) == []

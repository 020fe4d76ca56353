"""A pointer of each model: moved, signed, lost and found by itself, beside that of the default model."""

import base64
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import redis

from shared_model.errors import ReleaseError
from shared_model.redis_store import keys
from shared_model.releases import pointer, pointer_file, pointers
from shared_model.releases.pointer import Pointer
from shared_model.releases.pointers import Pointers
from shared_model.releases.store import Store
from shared_model.settings import StateSettings
from shared_model.trust import keyring

MAIN, MAIN_2 = (f"main-{digit * 12}" for digit in "ab")
SIDE, SIDE_2, SIDE_3 = (f"side-{digit * 12}" for digit in "abc")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    keyring.make(tmp_path / "keys", cluster=False, operator=True)
    (tmp_path / "keys" / keyring.UNSETTLED).unlink()
    return Store.from_settings(StateSettings(state=tmp_path))


def reader(store: Store) -> keyring.Keyring:
    """The keys of another process of the same host."""
    return keyring.load(StateSettings(state=Path(store.files.root).parent))


def test_each_model_moves_by_itself(store: Store, redis_client: "redis.Redis") -> None:
    pointer.promote(store, redis_client, MAIN)
    for release in (SIDE, SIDE_2):
        pointer.promote(store, redis_client, release, "side")
    pointer.start_canary(store, redis_client, SIDE_3, 0.25, "side")
    assert pointers.read(store, redis_client) == Pointers(
        Pointer(1, MAIN), {"side": Pointer(3, SIDE_2, SIDE, SIDE_3, 0.25)}
    )
    pointer.rollback(store, redis_client, "side")
    assert pointer.rollback(store, redis_client, "side") == Pointer(5, SIDE)
    assert pointer.read(store, redis_client) == Pointer(1, MAIN)


@pytest.mark.parametrize("lost", ["file", "redis"])
def test_either_copy_of_each_pointer_may_be_lost(store: Store, redis_client: "redis.Redis", lost: str) -> None:
    pointer.promote(store, redis_client, MAIN)
    pointer.promote(store, redis_client, SIDE, "side")
    if lost == "redis":
        redis_client.flushall()
    else:
        (Path(store.files.root) / pointer_file.OTHERS).write_text("{")
    assert pointers.read(store, redis_client) == Pointers(Pointer(1, MAIN), {"side": Pointer(1, SIDE)})
    assert pointer.promote(store, redis_client, SIDE_2, "side") == Pointer(2, SIDE_2, SIDE)
    assert pointer.read_file(store, "side") == Pointer(2, SIDE_2, SIDE)


def test_a_release_of_another_name_is_none_of_the_model(store: Store) -> None:
    for move in (pointer.promote, lambda *args: pointer.start_canary(*args[:3], 0.5, args[3])):
        with pytest.raises(ReleaseError, match=f"release {MAIN} is of another model than side"):
            move(store, None, MAIN, "side")


def test_the_default_moves_and_the_former_one_goes_on_under_its_name(store: Store, redis_client: "redis.Redis") -> None:
    pointer.promote(store, redis_client, MAIN)
    pointer.promote(store, redis_client, SIDE, "side")
    pointers.promote_default(store, redis_client, SIDE_2)
    found = pointers.read(store, redis_client)
    assert found == Pointers(Pointer(2, SIDE_2, MAIN), {"main": Pointer(1, MAIN)})
    assert [pointers.pointed_by(store, redis_client, model) for model in ("main", "side", "other")] == [
        "main",
        "",
        "other",
    ]
    # A rollback undoes all of it.
    pointer.rollback(store, redis_client)
    assert pointers.read(store, redis_client) == Pointers(Pointer(3, MAIN), {"side": Pointer(1, SIDE)})


def test_the_default_pointer_is_stored_and_signed_as_before_there_were_several(
    store: Store,
    redis_client: "redis.Redis",
) -> None:
    pointer.promote(store, redis_client, MAIN)
    stored = {name.decode(): value.decode() for name, value in redis_client.hgetall("tandem:{release}:pointer").items()}
    assert set(stored) == {*asdict(Pointer(1, MAIN)), "signer", "signature"}
    assert json.loads(store.files.read("ACTIVE.json")) == {**stored, "version": 1, "weight": 0.0}
    statement = b"tandem pointer\n" + json.dumps(asdict(Pointer(1, MAIN)), sort_keys=True).encode()
    signature = base64.b64decode(stored["signature"].partition(" ")[2])
    assert store.keys.sign(statement) == keyring.Signature(base64.b64decode(stored["signer"]), signature)


def test_the_pointer_of_one_model_is_no_signed_one_of_another(
    store: Store,
    redis_client: "redis.Redis",
) -> None:
    """Nor of the default model, though its operator signed it."""
    pointer.promote(store, redis_client, SIDE, "side")
    moved = redis_client.hgetall(keys.release_pointer("side"))
    assert pointer.decode(moved, reader(store), "side") == Pointer(1, SIDE)
    with pytest.raises(ReleaseError, match=r"tandem:\{release\}:pointer in Redis"):
        pointer.decode(moved, reader(store))


def test_a_former_version_of_a_models_pointer_is_refused(
    store: Store,
    redis_client: "redis.Redis",
) -> None:
    """The versions of the default model's pointer do not count."""
    for _ in range(3):
        pointer.promote(store, redis_client, MAIN)
    pointer.promote(store, redis_client, SIDE, "side")
    former = redis_client.hgetall(keys.release_pointer("side"))
    pointer.promote(store, redis_client, SIDE_2, "side")
    trusted = reader(store)
    assert pointer.decode(redis_client.hgetall(keys.release_pointer("side")), trusted, "side") == Pointer(
        2, SIDE_2, SIDE
    )
    with pytest.raises(ReleaseError, match="has version 1, which comes after version 2"):
        pointer.decode(former, trusted, "side")


def test_pointers_that_were_stored_before_the_first_key_are_signed_once(
    tmp_path: Path, redis_client: "redis.Redis"
) -> None:
    unsigned = Store(tmp_path / "releases")
    pointer.promote(unsigned, redis_client, MAIN)
    pointer.promote(unsigned, redis_client, SIDE, "side")
    store = Store(tmp_path / "releases", load_keys=lambda: keyring.load(StateSettings(state=tmp_path)))
    assert pointers.read(store, redis_client).others == {"side": Pointer(1, SIDE)}
    assert not store.keys.unsettled
    assert store.keys.operators
    assert pointer.read_file(store, "side") == Pointer(1, SIDE)

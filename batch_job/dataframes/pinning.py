"""Which release a scorer is of: by a model's name, a release's id, or the path or URL of a release or a store."""

import contextlib
from dataclasses import replace
from functools import partial
from pathlib import Path

from shared_model.redis_store import clients
from shared_model.redis_store.server import external_url
from shared_model.releases import manifest, pointer, pointers, signature
from shared_model.releases.store import Release, Store
from shared_model.settings import StateSettings
from shared_model.trust import keyring


def pin(given: str, state: StateSettings) -> tuple[StateSettings, Release]:
    """The release, and the settings with the store that it is in. "" is the default model.

    In the store of the settings, a model's pointer is the newer of its file and, with REDIS_URL, the copy in Redis; in
    a store that is named, it is the file. Writes nothing. Raises: ReleaseError; SettingError.
    """
    if "/" not in given:
        return state, _open(given, state, external_url(state))
    place, _, last = given.rstrip("/").rpartition("/")
    if manifest.is_id(last):
        # ROOT/<name>/<id>
        own = replace(state, releases=place.rpartition("/")[0] if "://" in place else str(Path(place).parent))
        return own, _open(last, own, "")
    own = replace(state, releases=given)
    return own, _open("", own, "")


def _open(given: str, state: StateSettings, redis_url: str) -> Release:
    store = Store(state.releases_root, signature.trusted_keys(state), partial(keyring.read, state), state.revoked)
    return store.open(given if manifest.is_id(given) else _active(store, redis_url, given))


def _active(store: Store, redis_url: str, model: str) -> str:
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(clients.connect(redis_url, 5.0, 2.0)) if redis_url else None
        return pointer.read(store, client, pointers.pointed_by(store, client, model)).active

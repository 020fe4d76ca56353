"""Signs what was stored before a machine had an operator key, once: pointer, its file copy, routing
policy, and the verdicts on the releases that the pointer names.

Keys are made at their first use with the embedded Redis, and by an operator's command otherwise. The values stored
before have no signature, or that of an operator of another state folder with the same releases, who is trusted then.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import redis
from google.protobuf.message import DecodeError

from protos.scoring.v1.storage_pb2 import RoutingPolicy
from shared_model.errors import ReleaseError
from shared_model.redis_store import keys
from shared_model.releases import pointer_signature, verdict_signature
from shared_model.trust import keyring, policy_signature

if TYPE_CHECKING:
    from shared_model.releases.store import Store

#: Of the file copy of the pointer.
FILE = "ACTIVE.json"

#: The fields of a pointer that a signature covers. Raises: ValueError, KeyError for a damaged one.
Fields = Callable[[Mapping[str, Any]], Mapping[str, Any]]

log = logging.getLogger(__name__)


def settle(store: "Store", client: "redis.Redis | None", fields: Fields) -> None:
    """Without Redis only the file is signed, and this is to be repeated. A damaged value is left as it is."""
    with store.files.locked():
        file = _settle_file(store, fields)
        if client is None:
            return
        try:
            client.transaction(lambda pipe: _settle_pointer(store, pipe, fields, file), keys.release_pointer())
            client.transaction(lambda pipe: _settle_policy(store, pipe), keys.routing_policy())
        except redis.RedisError as error:
            log.warning("Redis did not answer (%s): the pointer and the policy in it are signed later", error)
            return
        store.keys.settle()
    store.reload_keys()


def _settle_file(store: "Store", fields: Fields) -> dict[str, Any] | None:
    """The pointer of the file, signed, which could not be written there; None otherwise."""
    try:
        document = json.loads(store.files.read(FILE))
        signed = _signed(store, document, fields)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if signed is None:
        return None
    try:
        store.files.write(FILE, json.dumps(signed).encode())
    except OSError:
        # These releases are read-only here.
        return signed
    return None


def _settle_pointer(store: "Store", pipe: Any, fields: Fields, file: Mapping[str, Any] | None) -> None:
    found = {name.decode(): value.decode() for name, value in pipe.hgetall(keys.release_pointer()).items()}
    try:
        signed = _signed(store, found, fields) if found else file
    except (ValueError, KeyError):
        return
    pipe.multi()
    if signed:
        pipe.hset(keys.release_pointer(), mapping=signed)


def _settle_policy(store: "Store", pipe: Any) -> None:
    stored = pipe.get(keys.routing_policy())
    try:
        policy = RoutingPolicy.FromString(stored or b"")
    except DecodeError:
        return
    pipe.multi()
    if stored and not policy.HasField("signature"):
        pipe.set(keys.routing_policy(), policy_signature.signed(policy, store.keys))


def _signed(store: "Store", document: Mapping[str, Any], fields: Fields) -> dict[str, Any] | None:
    """The document with a signature; None if it has one already, whose operator is trusted from now on."""
    covered = fields(document)
    _settle_verdicts(store, {str(covered[role]) for role in ("active", "previous", "canary")} - {""})
    signature = pointer_signature.found(covered, document)
    if signature is None:
        return pointer_signature.signed(covered, store.keys)
    if pointer_signature.proves(covered, signature):
        keyring.trust(store.keys.folder, signature.signer)
    return None


def _settle_verdicts(store: "Store", release_ids: Iterable[str]) -> None:
    for release_id in release_ids:
        # A release that is not here, or read-only: the processes that load it judge it.
        with contextlib.suppress(ReleaseError, OSError):
            release = store.open(release_id)
            if release.read_note(verdict_signature.NOTE) is None:
                verdict_signature.sign(release, store.keys.operator, str(store.keys.folder / keyring.OPERATOR))

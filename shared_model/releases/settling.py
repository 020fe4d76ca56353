"""Signs what was stored before a machine had an operator key, once: pointers, their file copies, routing
policy, and the verdicts on the releases that the pointer names.

Keys are made at their first use with the embedded Redis, and by an operator's command otherwise. The values stored
before have no signature, or that of an operator of another state folder with the same releases, who is trusted then.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import redis
from google.protobuf.message import DecodeError

from protos.scoring.v1.storage_pb2 import RoutingPolicy
from shared_model.errors import ReleaseError
from shared_model.redis_store import keys
from shared_model.releases import pointer_file, pointer_signature, verdict_signature
from shared_model.trust import keyring, policy_signature

if TYPE_CHECKING:
    from shared_model.releases.store import Store

#: The fields of a model's pointer that a signature covers. Raises: ValueError, KeyError for a damaged one.
Fields = Callable[[Mapping[str, Any], str], Mapping[str, Any]]

log = logging.getLogger(__name__)


def settle(store: "Store", client: "redis.Redis | None", fields: Fields) -> None:
    """Without Redis only the file is signed, and this is to be repeated. A damaged value is left as it is."""
    with store.files.locked():
        written = {model: _settle_file(store, fields, model) for model in ("", *_written(store))}
        if client is None:
            return
        try:
            stored = {name.decode() for name in client.smembers(keys.release_models())}
            for model in ("", *sorted(stored | written.keys() - {""})):
                settle_one = partial(_settle_pointer, store, fields=fields, file=written.get(model), model=model)
                client.transaction(settle_one, keys.release_pointer(model))
            client.transaction(lambda pipe: _settle_policy(store, pipe), keys.routing_policy())
        except redis.RedisError as error:
            log.warning("Redis did not answer (%s): the pointer and the policy in it are signed later", error)
            return
        store.keys.settle()
    store.reload_keys()


def _written(store: "Store") -> list[str]:
    """The models in the file; none if it is damaged, as above."""
    try:
        return pointer_file.models(store.files)
    except ReleaseError:
        return []


def _settle_file(store: "Store", fields: Fields, model: str) -> dict[str, Any] | None:
    """The pointer of the file, signed, which could not be written there; None otherwise."""
    try:
        document = pointer_file.read(store.files, model)
        signed = _signed(store, document, fields, model)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if signed is None:
        return None
    try:
        pointer_file.write(store.files, signed, model)
    except OSError:
        # These releases are read-only here.
        return signed
    return None


def _settle_pointer(store: "Store", pipe: Any, fields: Fields, file: Mapping[str, Any] | None, model: str) -> None:
    found = {name.decode(): value.decode() for name, value in pipe.hgetall(keys.release_pointer(model)).items()}
    try:
        signed = _signed(store, found, fields, model) if found else file
    except (ValueError, KeyError):
        return
    pipe.multi()
    if signed:
        pipe.hset(keys.release_pointer(model), mapping=signed)
    if signed and model:
        pipe.sadd(keys.release_models(), model)


def _settle_policy(store: "Store", pipe: Any) -> None:
    stored = pipe.get(keys.routing_policy())
    try:
        policy = RoutingPolicy.FromString(stored or b"")
    except DecodeError:
        return
    pipe.multi()
    if stored and not policy.HasField("signature"):
        pipe.set(keys.routing_policy(), policy_signature.signed(policy, store.keys))


def _signed(store: "Store", document: Mapping[str, Any], fields: Fields, model: str) -> dict[str, Any] | None:
    """The document with a signature; None if it has one already, whose operator is trusted from now on."""
    covered = fields(document, model)
    _settle_verdicts(store, {str(covered[role]) for role in ("active", "previous", "canary")} - {""})
    signature = pointer_signature.found(covered, document)
    if signature is None:
        return pointer_signature.signed(covered, store.keys, model)
    if pointer_signature.proves(covered, signature, model):
        keyring.trust(store.keys.folder, signature.signer)
    return None


def _settle_verdicts(store: "Store", release_ids: Iterable[str]) -> None:
    for release_id in release_ids:
        # A release that is not here, or read-only: the processes that load it judge it.
        with contextlib.suppress(ReleaseError, OSError):
            release = store.open(release_id)
            if release.read_note(verdict_signature.NOTE) is None:
                verdict_signature.sign(release, store.keys.operator, str(store.keys.folder / keyring.OPERATOR))

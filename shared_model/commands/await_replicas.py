"""Counts the replicas that follow the release pointer after a move, from their heartbeats in Redis."""

import argparse
import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import redis
from google.protobuf.message import DecodeError

from protos.scoring.v1.storage_pb2 import ReplicaProfile, ReplicaState
from shared_model.commands import common
from shared_model.errors import StoreUnavailable, Untrusted
from shared_model.redis_store import keys
from shared_model.releases import pointer
from shared_model.releases.pointer import Pointer
from shared_model.settings import StateSettings
from shared_model.trust import mac
from shared_model.trust.keyring import WITHOUT_KEYS, Keyring

#: Seconds that `--wait` waits by default. A replica on two busy cores loads a small release in 15.
DEFAULT_SECONDS = 120.0
#: Replicas send four heartbeats a second.
_POLL_SECONDS = 0.25
#: A busy host may send one after its last one has expired: until then a replica counts as it was last heard.
_LATE_SECONDS = 5.0


@dataclass(frozen=True)
class Progress:
    """Replicas by progress. `failed`: replica → why it cannot serve the pointer's releases. `pinned`: replicas that do
    not follow the pointer."""

    following: Sequence[str]
    waiting: Sequence[str]
    failed: Mapping[str, str]
    pinned: Sequence[str]

    @property
    def known(self) -> int:
        return len(self.following) + len(self.waiting) + len(self.failed)

    def __str__(self) -> str:
        if not self.known:
            return "no replica is known that follows the pointer"
        parts = [f"{len(self.following)} of {self.known} replicas follow"]
        if self.waiting:
            parts.append(f"waiting: {', '.join(self.waiting)}")
        if self.pinned:
            parts.append(f"pinned to a release of their own: {', '.join(self.pinned)}")
        failed = [f"replica {name} does not serve {why}" for name, why in self.failed.items()]
        return "\n".join(["; ".join(parts), *failed])


def add_to(command: argparse.ArgumentParser) -> None:
    """Add the option `--wait` to a command that moves the pointer."""
    command.add_argument(
        "--wait",
        nargs="?",
        type=_seconds,
        const=DEFAULT_SECONDS,
        metavar="SECONDS",
        help="wait until all replicas follow, and exit 1 if one does not; default: do not wait; without a number, "
        f"{DEFAULT_SECONDS:g} s",
    )


def follow(args: argparse.Namespace, state: StateSettings, choose: common.ChooseModel) -> int:
    """Print how many replicas follow the pointer of a model; with `--wait`, wait until each follows or fails. Returns
    the exit code.

    Raises: StoreUnavailable if Redis does not answer.
    """
    with common.redis_client(state) as client:
        store = common.store_of(state)
        model = choose(store, client)
        wanted = pointer.read(store, client, model)
        heard = dict[str, tuple[float, ReplicaProfile]]()

        def look() -> Progress:
            moment = time.monotonic()
            heard.update({it.replica.id: (moment, it) for it in read(client)})
            return progress([it for at, it in heard.values() if moment - at < _LATE_SECONDS], wanted, model)

        now = look()
        if args.wait is None:
            if now.known:
                print(f"replicas known: {now.known}; they follow within about a minute, --wait waits for that")
            return 0
        end = time.monotonic() + args.wait
        while now.waiting and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
            now = look()
    print(now)
    return 1 if now.waiting or now.failed else 0


def read(client: "redis.Redis") -> list[ReplicaProfile]:
    """The replicas that accept requests. Raises: StoreUnavailable."""
    return [profile for _, profile in beats(client)]


def beats(client: "redis.Redis", trusted: Keyring = WITHOUT_KEYS) -> list[tuple[ReplicaState, ReplicaProfile]]:
    """The heartbeats of replicas that accept requests; with a cluster key, those that were written with it. Raises:
    StoreUnavailable."""
    try:
        names = sorted(client.smembers(keys.replicas()))
        stored = client.mget([keys.replica(name.decode()) for name in names]) if names else []
        states = [ReplicaState.FromString(it) for it in stored if it and _is_trusted(it, trusted)]
        found = [(state, ReplicaProfile.FromString(state.profile)) for state in states]
    except redis.RedisError as error:
        raise StoreUnavailable(f"Redis did not say what replicas serve: {error}") from error
    except DecodeError as error:
        raise StoreUnavailable(f"a replica's heartbeat cannot be read: {error}") from error
    return [(state, profile) for state, profile in found if profile.lanes and not profile.replica.draining]


def _is_trusted(stored: bytes, trusted: Keyring) -> bool:
    if trusted.cluster:
        try:
            mac.check(trusted.cluster, stored, trusted.accept_unsigned)
        except Untrusted:
            return False
    return True


def progress(replicas: Sequence[ReplicaProfile], wanted: Pointer, model: str = "") -> Progress:
    """A replica follows `wanted`, the pointer of a model, once it has seen this version of it and loaded its releases.
    A replica that does not serve the model is not counted; one that loads it when it is asked for follows."""
    following, waiting, failed, pinned = list[str](), list[str](), dict[str, str](), list[str]()
    for it in replicas:
        if model and not (model in it.models or it.all_models):
            continue
        name, (version, releases) = it.replica.id, _seen(it, model)
        seen = version >= wanted.version
        loaded = releases[:1] == [wanted.active] and wanted.canary in (*releases, "")
        failures = {release: why for release, why in it.failures.items() if release in (wanted.active, wanted.canary)}
        if it.pinned:
            pinned.append(name)
        elif seen and failures:
            failed[name] = "; ".join(f"{release}: {why}" for release, why in sorted(failures.items()))
        elif seen and (loaded or it.models[model].on_demand):
            following.append(name)
        else:
            waiting.append(name)
    return Progress(following, waiting, failed, pinned)


def _seen(replica: ReplicaProfile, model: str) -> tuple[int, list[str]]:
    """The version of a model's pointer that a replica has seen, and its loaded releases, the active one first."""
    if not model:
        return replica.pointer_version, [replica.replica.release, *replica.replica.releases]
    served = replica.models[model]
    return served.pointer_version, [served.active, served.canary]


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (seconds := float(text)) < math.inf:
            return seconds
    raise argparse.ArgumentTypeError(f"expected seconds, 0 or more, not {text!r}")

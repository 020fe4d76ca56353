"""Which epoch answers for a release: one pointer, the epochs kept behind it, and the way back.

    publish     forward in (ds, token); what it pointed to is kept, with the one before
    rollback    to the newest epoch that is kept and whole, or to none; what it went back from is barred
    insisted    a person asks for one epoch, whatever the pointer says; if that is a step back, what it left is barred

What is barred, and whatever came before it, is not published again unless a person insists.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import redis

from shared_model.errors import JobError, StoreUnavailable
from shared_model.redis_store import keys

#: Epochs kept for a rollback.
KEPT = 2
#: Seconds an epoch lives unless told: a night missed must not empty the path, a week must.
KEEP_SECONDS = 3 * 24 * 3600

_LUA = Path(__file__).parent / "lua"
_ADVANCE = (_LUA / "advance.lua").read_text()
_ROLL_BACK = (_LUA / "roll_back.lua").read_text()


@dataclass(frozen=True)
class Epoch:
    """`name` is unique to (ds, token)."""

    release: str
    precision: str
    ds: str
    token: int

    @property
    def name(self) -> str:
        return f"{self.ds}.{self.token}"


class Outcome(StrEnum):
    """What became of an epoch that was to be pointed to; `advance.lua` decides."""

    MOVED = "moved"
    ALREADY_LIVE = "standing"
    OLDER = "older"
    BARRED = "barred"

    @property
    def live(self) -> bool:
        """Whether it is the epoch that answers."""
        return self in (Outcome.MOVED, Outcome.ALREADY_LIVE)


@dataclass(frozen=True)
class RolledBack:
    """Names of epochs; `now` is empty where none was left to go back to."""

    release: str
    was: str
    now: str


def keys_of(release: str, name: str) -> tuple[str, str, str]:
    """Scores, filter and facts of an epoch."""
    return keys.epoch_scores(release, name), keys.epoch_filter(release, name), keys.epoch_facts(release, name)


def live(client: "redis.Redis", release: str) -> str:
    """Name of the epoch that is pointed to, empty without one. Raises: StoreUnavailable."""
    try:
        return (client.hget(keys.epoch_pointer(release), "epoch") or b"").decode()
    except redis.RedisError as error:
        raise StoreUnavailable(f"looking at what is live of {release}: {error}") from error


def live_keys(client: "redis.Redis", epoch: Epoch) -> int | None:
    """Keys of an epoch that is pointed to and whole; None when it is not. Raises: StoreUnavailable."""
    try:
        pointed = client.hget(keys.epoch_pointer(epoch.release), "epoch")
        return whole(client, epoch.release, epoch.name) if pointed == epoch.name.encode() else None
    except redis.RedisError as error:
        raise StoreUnavailable(f"looking at {epoch.name}: {error}") from error


def whole(client: "redis.Redis", release: str, name: str) -> int | None:
    """Keys of an epoch that can answer; None when some of it has expired or is lost."""
    scores, bloom, facts = keys_of(release, name)
    found, count = int(client.hlen(scores)), client.hget(facts, "count")
    return found if client.exists(bloom) and count and int(count) == found else None


def look(client: "redis.Redis", epoch: Epoch, insist: bool = False) -> Outcome:
    """What `move` would say now."""
    [outcome] = _advance(client, epoch, epoch.name, insist, "look")
    return Outcome(outcome)


def move(client: "redis.Redis", epoch: Epoch, staged: str, insist: bool = False) -> Outcome:
    """Point to an epoch whose keys lie under the name `staged`; those of epochs no longer kept are dropped."""
    outcome, *dropped = _advance(client, epoch, staged, insist, "move")
    for name in dropped:
        client.unlink(*keys_of(epoch.release, name))
    return Outcome(outcome)


def roll_back(
    client: "redis.Redis", release: str, ds: str, latest_token: int, keep_seconds: int = KEEP_SECONDS
) -> RolledBack:
    """Go back from the epoch of day `ds`, which must be the one that answers. Its keys are dropped at once.

    `latest_token`: of attempts at that day, the last; none of those that have begun is published without a person.
    Raises: JobError when another epoch answers, StoreUnavailable.
    """
    try:
        pointer = {k.decode(): v.decode() for k, v in client.hgetall(keys.epoch_pointer(release)).items()}
        was = pointer.get("epoch", "")
        if not was or pointer["ds"] != ds:
            live = f"epoch {was}, of ds={pointer['ds']}, is live" if was else "no epoch is live"
            raise JobError(f"nothing was rolled back: {live} for release {release}, and ds={ds} is not")
        kept = pointer.get("previous", "").split()
        usable = [name for name in kept if whole(client, release, name) is not None]
        now = usable[0] if usable else ""
        _roll_back(client, release, was, usable, (ds, max(int(pointer["token"]), latest_token)))
        if now:
            for key in keys_of(release, now):
                client.expire(key, keep_seconds)
        client.unlink(*keys_of(release, was))
    except redis.RedisError as error:
        raise StoreUnavailable(f"rolling back release {release}: {error}") from error
    return RolledBack(release, was, now)


def _roll_back(client: "redis.Redis", release: str, was: str, usable: Sequence[str], barrier: tuple[str, int]) -> None:
    now, rest = (usable[0], usable[1:]) if usable else ("", ())
    ds, _, token = now.rpartition(".")
    arguments = [was, now, ds, token, " ".join(rest), *barrier]
    if not client.register_script(_ROLL_BACK)(keys=[keys.epoch_pointer(release)], args=arguments):
        raise JobError(f"release {release}: {was} no longer answers, another epoch was published meanwhile; look again")


def _advance(client: "redis.Redis", epoch: Epoch, staged: str, insist: bool, mode: str) -> list[str]:
    names = [keys.epoch_pointer(epoch.release), *keys_of(epoch.release, staged), *keys_of(epoch.release, epoch.name)]
    arguments = [epoch.name, epoch.ds, epoch.token, int(insist), KEPT, mode]
    return [part.decode() for part in client.register_script(_ADVANCE)(keys=names, args=arguments)]

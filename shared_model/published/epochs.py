"""The pointer to a release's live epoch, the epochs kept for a rollback, and the rollback watermark.

    publish     moves forward in (ds, token); the former epoch and the one before it are kept
    rollback    returns to the newest kept and complete epoch, or to no epoch; raises the watermark to the epoch it left
    insist      an operator publishes any epoch; if that is a step back, the watermark is raised to the epoch it left

Epochs up to the watermark are published again only if an operator insists.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import redis

from shared_model.errors import JobError, StoreUnavailable
from shared_model.redis_store import keys

#: Epochs kept for a rollback.
KEPT = 2
#: Seconds until a half-written epoch expires after its writer has died.
STAGED_SECONDS = 600
#: Default lifetime of an epoch in seconds: scores outlive a missed night, but not a missed week.
KEEP_SECONDS = 3 * 24 * 3600

_LUA = Path(__file__).parent / "lua"
_ADVANCE = (_LUA / "advance.lua").read_text()
_ROLL_BACK = (_LUA / "roll_back.lua").read_text()
_END_SOON = (_LUA / "end_soon.lua").read_text()


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
    """The outcome of moving the pointer to an epoch, as `advance.lua` returns it."""

    MOVED = "moved"
    ALREADY_LIVE = "standing"
    OLDER = "older"
    BARRED = "barred"

    @property
    def live(self) -> bool:
        """Whether the epoch is live afterwards."""
        return self in (Outcome.MOVED, Outcome.ALREADY_LIVE)


@dataclass(frozen=True)
class RolledBack:
    """Names of epochs; `now` is empty if no epoch was left to return to."""

    release: str
    was: str
    now: str


def keys_of(release: str, name: str) -> tuple[str, str, str, str]:
    """Keys of an epoch's scores, filter, facts and index by message id, which an empty epoch and those of earlier
    versions have not."""
    of_epoch = (keys.epoch_scores, keys.epoch_filter, keys.epoch_facts, keys.epoch_ids)
    scores, bloom, facts, ids = (key(release, name) for key in of_epoch)
    return scores, bloom, facts, ids


def live(client: "redis.Redis", release: str) -> str:
    """Name of the live epoch, or an empty string. Raises: StoreUnavailable."""
    try:
        return (client.hget(keys.epoch_pointer(release), "epoch") or b"").decode()
    except redis.RedisError as error:
        raise StoreUnavailable(f"looking at what is live of {release}: {error}") from error


def live_keys(client: "redis.Redis", epoch: Epoch) -> int | None:
    """Number of keys of an epoch that is live and complete, else None. Raises: StoreUnavailable."""
    try:
        pointed = client.hget(keys.epoch_pointer(epoch.release), "epoch")
        return whole(client, epoch.release, epoch.name) if pointed == epoch.name.encode() else None
    except redis.RedisError as error:
        raise StoreUnavailable(f"looking at {epoch.name}: {error}") from error


def whole(client: "redis.Redis", release: str, name: str) -> int | None:
    """Number of keys of a complete epoch; None if a part of it has expired or is lost."""
    scores, bloom, facts, ids = keys_of(release, name)
    found, (count, id_fields) = int(client.hlen(scores)), client.hmget(facts, ["count", "id_fields"])
    complete = client.exists(bloom) and count and int(count) == found and int(client.hlen(ids)) == int(id_fields or 0)
    return found if complete else None


def look(client: "redis.Redis", epoch: Epoch, insist: bool = False) -> Outcome:
    """The outcome that `move` would have now."""
    [outcome] = _advance(client, epoch, epoch.name, insist, "look")
    return Outcome(outcome)


def move(client: "redis.Redis", epoch: Epoch, staged: str, insist: bool = False) -> Outcome:
    """Point to an epoch whose keys lie under the name `staged`, and delete epochs that are no longer kept."""
    outcome, *dropped = _advance(client, epoch, staged, insist, "move")
    for name in dropped:
        client.unlink(*keys_of(epoch.release, name))
    return Outcome(outcome)


def roll_back(
    client: "redis.Redis", release: str, ds: str, latest_token: int, keep_seconds: int = KEEP_SECONDS
) -> RolledBack:
    """Return from the epoch of day `ds`, which must be live, and delete its keys.

    `latest_token`: token of the day's last attempt; attempts up to it are published only if an operator insists.
    Raises: JobError if another epoch is live, StoreUnavailable.
    """
    try:
        pointer = {k.decode(): v.decode() for k, v in client.hgetall(keys.epoch_pointer(release)).items()}
        was = pointer.get("epoch", "")
        if not was or pointer["ds"] != ds:
            live = f"epoch {was}, of ds={pointer['ds']}, is live" if was else "no epoch is live"
            raise JobError(f"nothing was rolled back: {live} for release {release}, and ds={ds} is not")
        kept = pointer.get("previous", "").split()
        now, *rest = [name for name in kept if whole(client, release, name) is not None] or [""]
        now_ds, _, now_token = now.rpartition(".")
        watermark = ds, max(int(pointer["token"]), latest_token)
        arguments = [was, now, now_ds, now_token, " ".join(rest), *watermark]
        if not client.register_script(_ROLL_BACK)(keys=[keys.epoch_pointer(release)], args=arguments):
            moved = f"{was} no longer answers, another epoch was published meanwhile; look again"
            raise JobError(f"release {release}: {moved}")
        if now:
            for key in keys_of(release, now):
                client.expire(key, keep_seconds)
        client.unlink(*keys_of(release, was))
    except redis.RedisError as error:
        raise StoreUnavailable(f"rolling back release {release}: {error}") from error
    return RolledBack(release, was, now)


def expire(client: "redis.Redis", releases: Collection[str]) -> int:
    """Delete pointers of releases that are no more and that no epoch answers for, and have keys that a killed publisher
    left without an end end soon; returns how many keys. Raises: StoreUnavailable."""
    try:
        return sum(_expire(client, key.decode(), releases) for key in client.scan_iter(match=keys.every_epoch()))
    except redis.RedisError as error:
        raise StoreUnavailable(f"looking for epochs that are no longer needed: {error}") from error


def _expire(client: "redis.Redis", key: str, releases: Collection[str]) -> int:
    release = keys.release_of(key)
    if key != keys.epoch_pointer(release):
        # Its publisher may be at work, and gives it another end then.
        return int(client.register_script(_END_SOON)(keys=[key], args=[STAGED_SECONDS]))
    answers = client.exists(keys.epoch_facts(release, live(client, release)))
    return 0 if release in releases or answers else int(client.unlink(key))


def _advance(client: "redis.Redis", epoch: Epoch, staged: str, insist: bool, mode: str) -> list[str]:
    names = [keys.epoch_pointer(epoch.release), *keys_of(epoch.release, staged), *keys_of(epoch.release, epoch.name)]
    arguments = [epoch.name, epoch.ds, epoch.token, int(insist), KEPT, mode]
    return [part.decode() for part in client.register_script(_ADVANCE)(keys=names, args=arguments)]

"""Heartbeats that only holders of the cluster key can write, and that cannot be replayed.

A heartbeat with a wrong MAC, with a counter below one that was seen, or with an old time is ignored, and logged once.
"""

import logging
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from protos.scoring.v1.storage_pb2 import ReplicaProfile, ReplicaState
from shared_model.clock import Clock
from shared_model.errors import Untrusted
from shared_model.trust import mac
from shared_model.trust.keyring import Keyring

#: Largest difference between the time of a heartbeat and this host's: clocks of hosts may differ by that much.
SKEW_SECONDS = 30.0
#: A heartbeat seen for longer than this is one that somebody stores again: Redis removes it after half of that time.
STILL_SECONDS = 2.0
#: The same problem of the same replica is logged again after this time; so many are remembered.
_AGAIN_SECONDS, _MOST = 600.0, 100

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    """The last heartbeat of one replica. `since`: monotonic seconds."""

    counter: int
    since: float


class HeartbeatTrust:
    """Writes this replica's heartbeats and verifies those of all."""

    def __init__(self, keys: Keyring, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._counter = 0
        self._seen: dict[str, _Seen] = {}
        self._wall = self._now = 0.0
        self._logged: dict[tuple[str, str], float] = {}

    def write(self, state: ReplicaState) -> bytes:
        """The stored form of a heartbeat."""
        if not self._keys.cluster:
            return state.SerializeToString()
        now_ms = int(self._clock.wall() * 1000)
        # Above the counters of a process before this one with the same id.
        self._counter = max(self._counter + 1, now_ms)
        state.counter, state.sent_at_ms = self._counter, now_ms
        return mac.sealed(self._keys.cluster, state.SerializeToString())

    def begin(self) -> None:
        """Read the clocks once for the heartbeats that are read together."""
        self._wall, self._now = self._clock.wall() * 1000, self._clock.monotonic()

    def open(self, raw: bytes) -> ReplicaState | None:
        """The heartbeat; None if it is not by a holder of the key. Raises: DecodeError."""
        if self._keys.cluster:
            try:
                mac.check(self._keys.cluster, raw, self._keys.accept_unsigned)
            except Untrusted as error:
                self._log(_replica(raw), str(error))
                return None
        return ReplicaState.FromString(raw)

    def is_fresh(self, replica: str, state: ReplicaState) -> bool:
        """Whether it is the newest heartbeat of this replica, and not one that somebody has stored again."""
        if not self._keys.cluster or not state.mac:
            return True
        now, seen, counter = self._now, self._seen.get(replica), state.counter
        if abs(self._wall - state.sent_at_ms) > SKEW_SECONDS * 1000:
            problem = f"is {SKEW_SECONDS:g} s old or more, or the clocks of the hosts differ by that much"
        elif seen is None:
            # Forgotten heartbeats are too old to be stored again.
            self._seen = {it: was for it, was in self._seen.items() if now - was.since < 3 * SKEW_SECONDS}
            self._seen[replica] = _Seen(counter, now)
            return True
        elif counter > seen.counter:
            seen.counter, seen.since = counter, now
            return True
        elif counter < seen.counter:
            problem = "is one of before, stored again"
        elif now - seen.since > STILL_SECONDS:
            problem = "does not change, although Redis removes a heartbeat after a second"
        else:
            return True
        self._log(replica, problem)
        return False

    def _log(self, replica: str, problem: str) -> None:
        now = self._clock.monotonic()
        self._logged = {it: at for it, at in self._logged.items() if now - at < _AGAIN_SECONDS}
        if (replica, problem) not in self._logged and len(self._logged) < _MOST:
            self._logged[replica, problem] = now
            log.warning("the heartbeat of %r %s: it is ignored", replica, problem)


def _replica(raw: bytes) -> str:
    """Id in a heartbeat that is not trusted, for the log."""
    try:
        return ReplicaProfile.FromString(ReplicaState.FromString(raw).profile).replica.id[:100]
    except DecodeError:
        return "a replica"

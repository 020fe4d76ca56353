"""Where a process stands in its service: on its own, or one of a supervisor's workers."""

from dataclasses import dataclass, field

from realtime_service.workers.journal import Recorder, unrecorded
from realtime_service.workers.quarantine import Quarantine


@dataclass(frozen=True)
class Guard:
    """Protects a service from texts that kill its processes: `record` notes what runs, `quarantine` what must not."""

    record: Recorder = unrecorded
    quarantine: Quarantine = field(default_factory=Quarantine)


@dataclass(frozen=True)
class Place:
    """`shared`: the public port is also other workers', and this one has an address of its own beside it.

    `restarts`: how often workers before this one, in its place, have died.
    """

    shared: bool = False
    restarts: int = 0
    guard: Guard = field(default_factory=Guard)

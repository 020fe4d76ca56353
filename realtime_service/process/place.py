"""Where a process stands in its service: on its own, or one of a supervisor's workers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """`shared`: the public port is also other workers', and this one has an address of its own beside it.

    `restarts`: how often workers before this one, in its place, have died.
    """

    shared: bool = False
    restarts: int = 0

"""The place of a process in its service: alone, or one of a supervisor's workers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """`shared`: this worker shares the public port with others, and has a private address besides.

    `restarts`: how many workers have died in this place before.
    """

    shared: bool = False
    restarts: int = 0

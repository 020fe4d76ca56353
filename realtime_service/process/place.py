"""The place of a process in its service: alone, or one of a supervisor's workers."""

from dataclasses import dataclass

from realtime_service.cluster.worker_loads import WorkerLoads


@dataclass(frozen=True)
class Place:
    """`shared`: this worker shares the public port with others, and has a private address besides.

    `metrics`: the socket file on which its supervisor asks it for metrics; empty for a process alone, which has no
    `loads` either.
    """

    shared: bool = False
    metrics: str = ""
    loads: WorkerLoads | None = None

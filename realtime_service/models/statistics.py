"""Counts and times of the requests that one loaded release has answered in this process."""

from dataclasses import dataclass, field

from shared_model.types import ServingPath


@dataclass(slots=True)
class Total:
    """The number of events, and the sum of their seconds."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds


@dataclass(slots=True)
class LaneTotal(Total):
    """Requests that one lane answered. `late`: after their deadline, or after the lane's target where they had none;
    `slow`: those that took longer than the lane's target."""

    late: int = 0
    slow: int = 0


@dataclass(slots=True)
class Statistics:
    """Requests and texts of one release. A request is answered, from a device or published scores, or it failed.

    `answered`, `failed`, `published`: from arrival to the end. `queued` and `computed`: of a computed request's last
    batch. `finished_at`: Unix time of the last answer, 0 before the first. `batches`: by rows. `lanes`: those that a
    device answered for a caller. `unserved`: those of the failed ones that the caller did not cause.
    """

    answered: Total = field(default_factory=Total)
    failed: Total = field(default_factory=Total)
    published: Total = field(default_factory=Total)
    queued: Total = field(default_factory=Total)
    computed: Total = field(default_factory=Total)
    finished_at: float = 0.0
    batches: dict[int, Total] = field(default_factory=dict)
    lanes: dict[ServingPath, LaneTotal] = field(default_factory=dict)
    unserved: int = 0

    @property
    def texts(self) -> int:
        """Texts that devices computed."""
        return sum(rows * total.count for rows, total in self.batches.items())

    def add_batch(self, rows: int, seconds: float) -> None:
        """Count a batch that a device ran."""
        self.batches.setdefault(rows, Total()).add(seconds)

    def add_computed(self, seconds: float, queued: float, computed: float, now: float) -> None:
        """Count a request that a device answered."""
        self.answered.add(seconds)
        self.queued.add(queued)
        self.computed.add(computed)
        self.finished_at = now

    def add_lane(self, path: ServingPath, seconds: float, late: bool, slow: bool) -> None:
        """Count a request that a lane answered for a caller."""
        lane = self.lanes.setdefault(path, LaneTotal())
        lane.add(seconds)
        lane.late += late
        lane.slow += slow

    def add_failed(self, seconds: float, unserved: bool) -> None:
        """Count a request that ended without an answer."""
        self.failed.add(seconds)
        self.unserved += unserved

    def add_published(self, seconds: float, now: float) -> None:
        """Count a request that published scores answered."""
        self.answered.add(seconds)
        self.published.add(seconds)
        self.finished_at = now

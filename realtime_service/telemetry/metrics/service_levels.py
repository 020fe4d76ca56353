"""Both service levels in figures: what each replica tells of itself, and the sum of all that the SLA board and `top`
show. Pure."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from prometheus_client import Metric

#: The service levels, in the order in which they are shown.
LEVELS = ("throughput", "latency")
LANES = (*LEVELS, "dynamic")
#: As in `.deploy/prometheus/budgets.yml`: 5 % of a lane's requests may miss their deadline or target.
BUDGET_SHARE = 0.05
_MISSED = ("late", "refused", "expired", "failed")
_ANSWERED = ("met", "late")
_COUNTED = ("met", *_MISSED)
#: A path, and the outcome of a request that is accepted for it, which has no path yet.
_DEFERRED = "deferred"


@dataclass(frozen=True)
class Totals:
    """Of one replica since its start. `ended`: requests by path and outcome; `within`: answers by path and the seconds
    that they took at most, cumulative, by finite edges."""

    at: float
    ended: Counter[tuple[str, str]]
    within: Counter[tuple[str, float]]

    @classmethod
    def of(cls, at: float, requests: Iterable[Metric], seconds: Iterable[Metric]) -> "Totals":
        """From the families of `tandem_requests_total` and `tandem_request_seconds`."""
        ended, within = Counter[tuple[str, str]](), Counter[tuple[str, float]]()
        for it in (sample for family in requests for sample in family.samples):
            if it.name.endswith("_total"):
                ended[it.labels["path"], it.labels["outcome"]] += int(it.value)
        for it in (sample for family in seconds for sample in family.samples):
            # JSON has no number for infinity; that edge would hold all answers, which `ended` has.
            if it.name.endswith("_bucket") and it.labels["le"] != "+Inf":
                within[it.labels["path"], float(it.labels["le"])] += int(it.value)
        return cls(at, ended, within)

    def missed(self, lane: str) -> tuple[float, float]:
        """Requests of a lane that count against its error budget, and all that count."""
        of = self.ended
        return sum(of[lane, it] for it in _MISSED), sum(of[lane, it] for it in _COUNTED)


@dataclass(frozen=True)
class LaneFigures:
    """A lane of one replica that takes requests. `per_text`: device seconds of one more text in a full batch;
    `p95_target`: seconds; 0 for no target."""

    waiting: int = 0
    load: float = 0.0
    per_text: float = 0.0
    device: str = ""
    p95_target: float = 0.0
    rate_target: float = 0.0


@dataclass(frozen=True)
class ModelFigures:
    model: str
    release: str
    canary: str = ""
    weight: float = 0.0


@dataclass(frozen=True)
class ReplicaFigures:
    """`ended` and `within`: as in `Totals`, of the last `seconds`, by path, then by outcome or edge."""

    replica: str
    address: str = ""
    seconds: float = 0.0
    draining: bool = False
    ended: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    within: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    lanes: Mapping[str, LaneFigures] = field(default_factory=dict)
    models: Sequence[ModelFigures] = ()
    failed_releases: Sequence[str] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> "ReplicaFigures":
        """Raises: ValueError for what another version wrote and this one cannot read."""
        return cls.of(json.loads(text))

    @classmethod
    def of(cls, read: Mapping[str, Any]) -> "ReplicaFigures":
        """Raises: ValueError."""
        try:
            lanes = {lane: LaneFigures(**it) for lane, it in read["lanes"].items()}
            return cls(**{**read, "lanes": lanes, "models": [ModelFigures(**it) for it in read["models"]]})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the figures of a replica cannot be read: {error}") from error


@dataclass(frozen=True)
class Shared:
    """All that replicas share. `budgets`: by lane and window ("hour", "days") requests that missed, and all; `since`:
    the first day that is counted; `deferred`: requests that wait, and milliseconds until the earliest deadline, if any;
    `silent`: replicas that are known and tell no figures; `problem`: why something is not here."""

    at: float
    redis: bool = False
    budgets: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    since: str = ""
    deferred: Sequence[float | None] | None = None
    nights: Sequence[Mapping[str, Any]] = ()
    silent: Sequence[str] = ()
    problem: str = ""


def window(before: Totals, now: Totals) -> dict[str, Any]:
    """The fields of `ReplicaFigures` that are changes between two totals of one process."""
    ended: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for (path, outcome), count in (now.ended - before.ended).items():
        ended[path][outcome] = count
    within: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    grown = {path for path, _ in now.within - before.within}
    for path, edge in sorted(now.within):
        if path in grown:
            within[path].append((edge, now.within[path, edge] - before.within[path, edge]))
    return {"seconds": now.at - before.at, "ended": dict(ended), "within": dict(within)}


def board(replicas: Sequence[ReplicaFigures], shared: Shared) -> dict[str, Any]:
    """All that the board and `top` show, as JSON's types; None where a figure is not known."""
    return {
        "at": shared.at,
        "window_seconds": max((it.seconds for it in replicas), default=0.0),
        "redis": shared.redis,
        "problem": shared.problem,
        "since": shared.since,
        "lanes": [_lane(lane, replicas, shared) for lane in LANES],
        "paths": _paths(replicas),
        "replicas": [*map(_replica, replicas), *({"replica": it, "state": "no figures"} for it in shared.silent)],
        "models": _models(replicas),
        "deferred": _deferred(shared),
        # An earlier version's batch job told published nights of the default model alone.
        "nights": [{"model": "", "state": "published", **it} for it in shared.nights],
    }


def _lane(lane: str, replicas: Sequence[ReplicaFigures], shared: Shared) -> dict[str, Any]:
    served = [it.lanes[lane] for it in replicas if lane in it.lanes]
    spare, capacity = _capacity(lane, replicas)
    counted = sum(_rate(it, lane, _COUNTED) for it in replicas)
    missed = sum(_rate(it, lane, _MISSED) for it in replicas)
    p95 = quantile(0.95, *_within(lane, replicas))
    return {
        "lane": lane,
        "replicas": len(served),
        "answers_per_second": sum(_rate(it, lane, _ANSWERED) for it in replicas),
        "rate_target": max((it.rate_target for it in served), default=0.0) or None,
        "p95_ms": None if math.isnan(p95) else 1000 * p95,
        "p95_target_ms": 1000 * max((it.p95_target for it in served), default=0.0) or None,
        "in_time": 1 - missed / counted if counted else None,
        "refused_per_second": sum(_rate(it, lane, ("refused",)) for it in replicas),
        "waiting": sum(it.waiting for it in served),
        "load": max((it.load for it in served), default=None),
        "spare_texts_per_second": spare,
        "spare": spare / capacity if spare is not None and capacity else None,
        "budget": {name: _budget(*it) for name, it in shared.budgets.get(lane, {}).items()},
    }


def _capacity(lane: str, replicas: Iterable[ReplicaFigures]) -> tuple[float | None, float]:
    """Texts a second that a lane could answer beside the work of now, and with its devices to itself. Lanes of one
    device of a replica share it."""
    spare, capacity, known = 0.0, 0.0, False
    for replica in replicas:
        own = replica.lanes.get(lane)
        if own is None or not own.per_text or replica.draining:
            continue
        used = sum(it.load for it in replica.lanes.values() if it.device == own.device)
        known, capacity = True, capacity + 1 / own.per_text
        spare += max(0.0, 1 - used) / own.per_text
    return (spare if known else None), capacity


def _budget(missed: float, counted: float) -> dict[str, float | None]:
    """`left`: the share of the budget that is left, negative once it is overspent; None without a request."""
    left = 1 - missed / (BUDGET_SHARE * counted) if counted else None
    return {"missed": missed, "counted": counted, "left": left}


def _rate(replica: ReplicaFigures, path: str, outcomes: Iterable[str]) -> float:
    ended = replica.ended.get(path, {})
    return sum(ended.get(it, 0.0) for it in outcomes) / replica.seconds if replica.seconds else 0.0


def _paths(replicas: Sequence[ReplicaFigures]) -> list[dict[str, Any]]:
    """The share of each path in the answers; a deferred request counts when it is accepted."""
    rates = defaultdict[str, float](float)
    for replica in replicas:
        for path in replica.ended:
            rates[path] += _rate(replica, path, _ANSWERED)
            rates[_DEFERRED] += _rate(replica, path, (_DEFERRED,))
    whole, ordered = sum(rates.values()), sorted(rates.items(), key=lambda it: -it[1])
    return [{"path": path, "per_second": rate, "share": rate / whole} for path, rate in ordered if rate]


def _replica(it: ReplicaFigures) -> dict[str, Any]:
    return {
        "replica": it.replica,
        "address": it.address,
        "state": "draining" if it.draining else "serving" if it.lanes else "router or warming up",
        "lanes": list(it.lanes),
        "load": sum(lane.load for lane in it.lanes.values()),
        "waiting": sum(lane.waiting for lane in it.lanes.values()),
        "answers_per_second": sum(_rate(it, path, _ANSWERED) for path in it.ended),
        "failed_releases": list(it.failed_releases),
    }


def _models(replicas: Sequence[ReplicaFigures]) -> list[dict[str, Any]]:
    """Each model's releases, and how many replicas have them: two lines where replicas differ."""
    found = Counter(it for replica in replicas if replica.lanes for it in replica.models)
    return [{**asdict(it), "replicas": count} for it, count in sorted(found.items(), key=lambda one: str(one[0]))]


def _deferred(shared: Shared) -> dict[str, Any] | None:
    if shared.deferred is None:
        return None
    waiting, due_in_ms = shared.deferred
    return {"waiting": waiting, "due_in_seconds": None if due_in_ms is None else due_in_ms / 1000}


def _within(lane: str, replicas: Iterable[ReplicaFigures]) -> tuple[list[tuple[float, float]], float]:
    """Answers of all replicas up to each edge, and all of them."""
    edges, whole = defaultdict[float, float](float), 0.0
    for replica in replicas:
        for edge, count in replica.within.get(lane, ()):
            edges[edge] += count
        whole += sum(replica.ended.get(lane, {}).get(it, 0.0) for it in _ANSWERED)
    return sorted(edges.items()), whole


def quantile(share: float, edges: Sequence[tuple[float, float]], whole: float) -> float:
    """As Prometheus' histogram_quantile; nan without samples. `edges`: upper, finite ones, with cumulative counts."""
    if not whole or not edges:
        return math.nan
    low, below = 0.0, 0.0
    for edge, count in edges:
        if count >= share * whole:
            return low + (edge - low) * (share * whole - below) / (count - below)
        low, below = edge, count
    return low

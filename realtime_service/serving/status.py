"""The state of a replica: the heartbeat that other replicas read, and the answer to Describe."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.storage_pb2 import ReplicaState, ServedModel
from realtime_service.cluster import heartbeat
from realtime_service.cluster.heartbeat import Following, LaneLoad
from realtime_service.errors import ReplicaUnavailable
from realtime_service.execution.devices import Devices
from realtime_service.models import release_figures
from realtime_service.models.registry import Model, Models, Serving
from realtime_service.rollout.rollout import Rollout
from realtime_service.routing.snapshot import Snapshot
from realtime_service.settings import Lane
from shared_model.types import Device as DeviceKind
from shared_model.types import Precision, ServingPath

#: Length of a typical chat message, for which heartbeats predict the finish.
TYPICAL_TOKENS = 16


@dataclass
class ReplicaStatus:
    """`placements`: where each precision computes, for people. `demand`: texts a second that callers with a quota ask
    of this replica. `tls`: its listener has TLS. `pinned`: it serves one release, whatever the pointer names.
    `rollout`: None on a replica that is pinned, or not warm yet; `draining` is set when it takes no new calls."""

    replica: str
    address: str
    models: Models
    device: Devices
    variants: Mapping[Precision, DeviceKind]
    placements: Mapping[Precision, str]
    demand: Callable[[], Mapping[str, float]]
    tls: bool = False
    pinned: bool = False
    rollout: Rollout | None = None
    draining: bool = False

    def heartbeat(self, opened: Iterable[ServingPath]) -> ReplicaState:
        """`opened`: the lanes that take requests."""
        serving = self.models.serving
        replica = scoring_pb2.ReplicaDescription(
            id=self.replica,
            address=self.address,
            release=serving.active,
            draining=self.draining,
            releases=sorted(serving.models),
            tls=self.tls,
        )
        loads = {path: load for path in opened if (load := self._load(path))}
        following = Following(pinned=self.pinned)
        if self.rollout:
            following = self._following(self.rollout)
        return heartbeat.state(replica, loads, self.demand(), following, release_figures.compared(serving))

    def _following(self, rollout: Rollout) -> Following:
        failures = {release: failure.why for release, failure in rollout.failures.items()}
        served = {name: it for name, it in self.models.serving.others.items() if rollout.residency.serves(name)}
        models = {
            name: ServedModel(
                pointer_version=rollout.versions.get(name, 0),
                active=it.active if it.active in self.models.serving.models else "",
                canary=it.canary if it.canary in self.models.serving.models else "",
                on_demand=name in self.models.on_demand,
            )
            for name, it in served.items()
        }
        return Following(rollout.version, failures, models=models, all_models=rollout.residency.names is None)

    def _load(self, path: ServingPath) -> LaneLoad | None:
        """None while the lane warms up."""
        typical = self.device.typical(self.models.active, path, TYPICAL_TOKENS)
        if typical is None:
            return None
        finish, real_time, per_text = typical
        lane = self.device.lanes[path]
        timing = self.models.active.timings.get(lane.precision)
        return LaneLoad(
            queue_depth=self.device.queue_depth(path),
            queue_limit=lane.max_concurrent,
            finish=finish,
            real_time=real_time,
            per_text=per_text,
            utilisation=self.device.utilisation_of(path),
            variant=f"{lane.precision}/{self.variants[lane.precision]}",
            slow=bool(timing and timing.slow),
        )

    def describe(self, snapshot: Snapshot, internals: bool, name: str = "") -> scoring_pb2.DescribeResponse:
        """`internals`: also what only operators should see: replicas and their addresses, the names of callers with a
        quota, and why a release failed; `name`: of the model, "" for the default one.

        Raises: UnknownRelease; ReplicaUnavailable if it is not loaded.
        """
        serving = self.models.serving
        active = serving.models.get(serving.roles(name).active)
        if active is None:
            raise ReplicaUnavailable(f"model: {name!r} is not loaded here; ask again in a moment")
        return scoring_pb2.DescribeResponse(
            release=active.release,
            labels=active.output.names,
            max_tokens=active.encoder.reads.max_tokens,
            lanes=[self._lane(it, snapshot, active) for it in self.device.lanes.values()],
            replicas=[it.described for it in snapshot.replicas] if internals else [],
            redis_available=snapshot.redis_available,
            releases=self._releases(internals),
            output=active.output.kind,
            pairs=active.encoder.reads.pairs,
            model=name or serving.default_name,
            models=self._models(serving),
            operators_policy=snapshot.policy.by_operators if internals else {},
            heads=[
                scoring_pb2.HeadDescription(name=it.name, output=it.output.kind, labels=it.output.names)
                for it in active.heads.specs
            ],
        )

    def _models(self, serving: Serving) -> list[scoring_pb2.ModelDescription]:
        return [
            scoring_pb2.ModelDescription(
                name=name,
                release=it.active if it.active in serving.models else "",
                is_default=name == serving.default_name,
            )
            for name, it in serving.by_name.items()
        ]

    def _lane(self, lane: Lane, snapshot: Snapshot, model: Model) -> scoring_pb2.LaneDescription:
        # The deferred lane is served wherever the throughput lane is.
        takes = ServingPath.THROUGHPUT if lane.path is ServingPath.DEFERRED else lane.path
        timing = model.timings.get(lane.precision)
        return scoring_pb2.LaneDescription(
            name=lane.path,
            precision=lane.precision,
            device=self.placements[lane.precision],
            max_batch_size=lane.max_rows,
            max_concurrent_requests=lane.max_concurrent,
            serving=takes in snapshot.lanes and not self.draining,
            p95_target_ms=1000 * snapshot.policy.targets.get(lane.path, 0.0),
            rate_target=lane.target_rate,
            waiting=self.device.queue_depth(lane.path),
            slow_here=bool(timing and timing.slow),
            call_ms=timing.milliseconds if timing else 0.0,
            call_budget_ms=timing.budget.milliseconds if timing else 0.0,
        )

    def _releases(self, internals: bool) -> Iterator[scoring_pb2.ReleaseDescription]:
        describe, serving = scoring_pb2.ReleaseDescription, self.models.serving
        for roles in serving.by_name.values():
            if roles.active in serving.models:
                yield describe(id=roles.active, state=scoring_pb2.RELEASE_ACTIVE, share=1 - roles.weight)
            if roles.canary in serving.models:
                yield describe(id=roles.canary, state=scoring_pb2.RELEASE_CANARY, share=roles.weight)
        if self.rollout and self.rollout.loading:
            yield describe(id=self.rollout.loading, state=scoring_pb2.RELEASE_LOADING)
        for release, failure in self.rollout.failures.items() if self.rollout else ():
            why = failure.why if internals else ""
            yield describe(id=release, state=scoring_pb2.RELEASE_FAILED, failure=why)

"""The separate shape, once: a router, a latency endpoint and a throughput endpoint, as processes of their own."""

import dataclasses
import itertools
import re
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from realtime_service.client import Client
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings
from shared_model.types import Priority, ServingPath
from tandem_stack import stack
from tandem_stack.calls import fresh_texts
from tandem_stack.checks import Problem
from tandem_stack.processes import Child, Supervisor
from tandem_stack.progress import step
from tandem_stack.uv import ROOT

CALLS = 50
#: What each process serves.
LANES = {"latency": "latency,dynamic", "throughput": "throughput", "router": "none"}
_READY_SECONDS = 60.0
_READY = re.compile(r"ready in .* on (?P<grpc>\S+), metrics on (?P<metrics>\S+)")
_ANSWERED = re.compile(
    r'tandem_requests_total\{model="[^"]*",outcome="(?:met|late)",path="(?P<path>\w+)"\} (?P<count>\S+)'
)
#: One kind of request for each endpoint.
_KINDS = {ServingPath.LATENCY: Priority.REAL_TIME, ServingPath.THROUGHPUT: Priority.BATCH}


@dataclass(frozen=True)
class Reached:
    """Calls of one kind through the router, and how many of them each endpoint answered."""

    kind: ServingPath
    calls: int
    answered: Mapping[str, int]

    @property
    def right(self) -> bool:
        """Whether the endpoint of that kind answered all of them."""
        return {name: count for name, count in self.answered.items() if count} == {self.kind: self.calls}


def run(plan: stack.Plan) -> list[Reached]:
    """Raises: Problem where a process does not come up, or the router does not find the others."""
    releases, keys = plan.state.releases_root, str(plan.state.keys_dir)
    state = dataclasses.replace(plan.state, state=plan.state.state / "separate", releases=releases, keys=keys)
    with RedisServer(state) as redis, Supervisor(state.state / "logs") as supervisor, step("the separate shape"):
        started = {name: _start(supervisor, name, lanes, state, redis.url) for name, lanes in LANES.items()}
        ready = {name: _addresses(name, child) for name, child in started.items()}
        _await_lanes(ready["router"]["grpc"])
        with Client(ready["router"]["grpc"]) as client:
            return [_reach(client, kind, {name: ready[name]["metrics"] for name in LANES}) for kind in _KINDS]


def _await_lanes(router: str) -> None:
    """Wait until the router knows that both endpoints take calls: it hears of it by their next heartbeat."""
    asked = [health_pb2.HealthCheckRequest(service=f"scoring.v1.ScoringService/{kind}") for kind in _KINDS]
    deadline = time.monotonic() + _READY_SECONDS
    with grpc.insecure_channel(router) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        while any(health.Check(it, timeout=10).status != health_pb2.HealthCheckResponse.SERVING for it in asked):
            if time.monotonic() > deadline:
                raise Problem("the router did not find both endpoints")
            time.sleep(0.1)


def _start(supervisor: Supervisor, name: str, lanes: str, state: StateSettings, redis_url: str) -> Child:
    command = [str(stack.runtime_python()), "-m", "realtime_service", "serve"]
    environ = {
        **stack.environ(state, redis_url),
        "TANDEM_LANES": lanes,
        "TANDEM_GRPC_ADDRESS": "127.0.0.1:0",
        "TANDEM_METRICS_ADDRESS": "127.0.0.1:0",
    }
    return supervisor.start(name, command, environ, ROOT)


def _addresses(name: str, child: Child) -> dict[str, str]:
    """The addresses of a process by the groups of _READY, once it is ready."""
    found = _READY.match(line := child.wait_for_line("ready", _READY_SECONDS))
    if not found:
        raise Problem(f"{name} is ready, but does not say where: {line}")
    return found.groupdict()


def _reach(client: Client, kind: ServingPath, metrics: Mapping[str, str]) -> Reached:
    before = {name: _answered(address, kind) for name, address in metrics.items()}
    for text in itertools.islice(fresh_texts(), CALLS):
        client.score(text, priority=_KINDS[kind])
    after = {name: _answered(address, kind) for name, address in metrics.items()}
    return Reached(kind, CALLS, {name: after[name] - before[name] for name in metrics})


def _answered(metrics: str, path: ServingPath) -> int:
    """Requests that a process has answered itself, down one path."""
    with urllib.request.urlopen(metrics, timeout=10) as page:
        text = page.read().decode()
    return sum(round(float(it["count"])) for it in _ANSWERED.finditer(text) if it["path"] == path)

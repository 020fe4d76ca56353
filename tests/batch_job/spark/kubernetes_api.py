"""As much of Kubernetes as Spark's own scheduler for it needs: an API that takes pods, and runs each as a process of
this host, started as the image starts its containers."""

import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY

#: The image's entry point.
ENTRY_POINT = REPOSITORY / "batch_job" / "jobs" / "container.sh"
_PATH = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/(?P<kind>\w+)(?:/(?P<name>[^/?]+))?(?:\?(?P<query>.*))?")


@dataclass
class Cluster:
    """`asked`: verb and kind of each request, as a Role names them. `pods`: those that exist, by name; `driver` is one.
    `said`: the output of containers."""

    namespace: str
    driver: str
    folder: Path
    asked: set[tuple[str, str]] = field(default_factory=set)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    url: str = ""

    @property
    def executors(self) -> list[dict[str, Any]]:
        return [pod for name, pod in self.pods.items() if name != self.driver]

    def create(self, pod: dict[str, Any]) -> dict[str, Any]:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        pod["metadata"].update(uid=str(uuid.uuid4()), resourceVersion="1", creationTimestamp=now)
        ready = {"type": "Ready", "status": "True"}
        pod["status"] = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [ready]}
        self.pods[pod["metadata"]["name"]] = pod
        return pod

    def run(self, pod: Mapping[str, Any]) -> None:
        """Start its container, with the variables that a node fills in, and those of the image."""
        [container] = pod["spec"]["containers"]
        fields = {"status.podIP": "127.0.0.1", "metadata.name": pod["metadata"]["name"]}
        given = {
            it["name"]: fields[it["valueFrom"]["fieldRef"]["fieldPath"]] if "valueFrom" in it else it.get("value", "")
            for it in container["env"]
        }
        path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(REPOSITORY), "SPARK_LOCAL_IP": "127.0.0.1"}
        for mount in container["volumeMounts"]:
            # A node would mount it; here it lies in a folder of the test.
            given = {
                name: value.replace(mount["mountPath"], f"{self.folder}{mount['mountPath']}")
                for name, value in given.items()
            }
        with open(self.folder / f"{pod['metadata']['name']}.log", "wb") as log:
            command = [str(ENTRY_POINT), *container["args"]]
            self.processes.append(
                subprocess.Popen(command, env={**given, **own}, cwd=self.folder, stdout=log, stderr=log)
            )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: Cluster

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = _PATH.fullmatch(self.path)
        assert found, self.path
        kind, name, query = found["kind"], found["name"], found["query"] or ""
        assert found["namespace"] == self.cluster.namespace
        if "Upgrade" in self.headers:
            # Without a web socket Spark watches by HTTP.
            return self._answer({})
        watches = "watch=true" in query
        verbs = {"GET": "get" if name else "list", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
        verb = "watch" if watches else verbs[self.command]
        self.cluster.asked.add((verb if name or verb != "delete" else "deletecollection", kind))
        if watches:
            return self._watch(query)
        if self.command == "POST":
            made = json.loads(body)
            if kind == "pods":
                self.cluster.run(self.cluster.create(made))
            return self._answer(made, 201)
        if self.command == "GET" and kind == "pods":
            if name:
                return self._answer(self.cluster.pods[name])
            return self._answer(
                {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self.cluster.executors}
            )
        return self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 (as http.server calls them)

    def _watch(self, query: str) -> None:
        """Events of executors, or of the driver where it is asked for by name, for as long as somebody listens."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.close_connection = True
        told: set[str] = set()
        while not self.wfile.closed:
            pods = self.cluster.pods
            for name in [
                it for it in pods if (it == self.cluster.driver) == ("fieldSelector" in query) and it not in told
            ]:
                told.add(name)
                self.wfile.write(json.dumps({"type": "ADDED", "object": pods[name]}).encode() + b"\n")
            time.sleep(0.1)

    def _answer(self, document: Mapping[str, Any], status: int = 200) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silence."""


@contextmanager
def serving(namespace: str, driver: str, folder: Path) -> Iterator[Cluster]:
    """A cluster with one pod, the driver."""
    cluster = Cluster(namespace, driver, folder)
    cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": driver}, "spec": {"containers": []}})
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        cluster.url = f"k8s://http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield cluster
        finally:
            for process in cluster.processes:
                process.kill()
                process.wait()
            server.shutdown()

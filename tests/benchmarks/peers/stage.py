"""All servers of one run, started once: Tandem's two lanes, the peers, and the floor."""

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import grpc

from protos.inference import open_inference_pb2 as inference
from protos.scoring.v1 import scoring_pb2
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings
from shared_model.types import Device, Precision
from tests.benchmarks import replicas
from tests.benchmarks.harness import REPOSITORY, CannotMeasure
from tests.benchmarks.peers import environments
from tests.benchmarks.peers.h2load import Target
from tests.benchmarks.replicas import Place
from tests.realtime_service.conftest import RunningService

LATENCY, DYNAMIC, FLOOR = "Tandem, latency lane", "Tandem, dynamic lane", "floor"
#: As the floor: a process for each core.
WORKERS = "Tandem, a worker a core, latency lane"
AIO, LITSERVE, TRITON = "plain grpc.aio", "LitServe", "Triton"
PEERS = (AIO, LITSERVE, TRITON)
#: Of the default release 15 tokens, padded to 16.
TEXT = "my card has not arrived yet and i am still waiting for it"
SCORE = "/scoring.v1.ScoringService/Score"
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_START_SECONDS = 90.0
#: A service times its lanes once more when it has started.
_SETTLE_SECONDS = 5.0


class Stage:
    """Use as a context. `targets`: by the name of a server."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._stack = contextlib.ExitStack()
        self.targets: dict[str, Target] = {}
        self._metrics_urls = list[str]()

    def __enter__(self) -> "Stage":
        with self._stack:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-peers-")))
            self._export()
            running = self._stack.enter_context(replicas.replica(self._place, TANDEM_PRECOMPUTED="false"))
            workers = self._workers()
            self._metrics_urls += [running.metrics, workers.metrics]
            for name, address, priority in (
                (LATENCY, running.address, "REAL_TIME"),
                (WORKERS, workers.address, "REAL_TIME"),
                (DYNAMIC, running.address, "NORMAL"),
            ):
                self.targets[name] = self._grpc(address, SCORE, _scoring_request(priority), name)
            starts = {AIO: self._aio, FLOOR: self._floor, LITSERVE: self._litserve, TRITON: self._triton}
            for name, start in starts.items():
                self.targets[name] = start()
            time.sleep(_SETTLE_SECONDS)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def unanswered(self) -> float:
        """Calls of Tandem that it refused or failed. h2load cancels those that are under way when a row ends."""
        lines = list[str]()
        for url in self._metrics_urls:
            with urllib.request.urlopen(url, timeout=10) as page:  # noqa: S310 - of this host
                lines += page.read().decode().splitlines()
        ends = (
            re.match(r'tandem_requests_total\{.*outcome="(?:refused|expired|failed|invalid)".*\} (\S+)', line)
            for line in lines
        )
        return sum(float(end[1]) for end in ends if end)

    def _export(self) -> None:
        """What the peers open: the graph, the tokeniser and the labels of the release."""
        release = self._place.store.open(self._place.first)
        variant = release.manifest.variant(Precision.INT8, Device.CPU)
        for name, path in variant.files.items():
            (self._folder / name).write_bytes(release.read(path))
        (self._folder / "tokenizer.json").write_bytes(release.read("tokenizer.json"))
        (self._folder / "labels.json").write_text(json.dumps(release.heads.specs[0].output.names))

    def _workers(self) -> RunningService:
        """A service of its own, which forwards nothing to the first one: that would be idle."""
        state = StateSettings(state=self._folder / "workers")
        settings = {
            "REDIS_URL": self._stack.enter_context(RedisServer(state)).url,
            "TANDEM_WORKERS": str(os.cpu_count() or 1),
            "TANDEM_PRECOMPUTED": "false",
        }
        return self._stack.enter_context(replicas.replica(self._place, **settings))

    def _aio(self) -> Target:
        return self._grpc(self._start("grpc", "grpc_server", 1, "executor"), SCORE, _scoring_request(""), AIO)

    def _floor(self) -> Target:
        copies = os.cpu_count() or 1
        return self._grpc(self._start("grpc", "grpc_server", copies, "inline"), SCORE, _scoring_request(""), FLOOR)

    def _triton(self) -> Target:
        request = inference.ModelInferRequest(model_name="scorer", raw_input_contents=[_length(TEXT.encode(), "<")])
        request.inputs.add(name="text", datatype="BYTES", shape=[1, 1])
        return self._grpc(self._start("triton", "triton_server"), _INFER, request.SerializeToString(), TRITON)

    def _litserve(self) -> Target:
        body = self._folder / "litserve.json"
        body.write_text(json.dumps({"text": TEXT}))
        url = f"http://{self._start('litserve', 'litserve_server')}/predict"
        request = urllib.request.Request(url, body.read_bytes(), {"content-type": "application/json"})
        _until(lambda: urllib.request.urlopen(request, timeout=10).read(), LITSERVE)  # noqa: S310 - of this host
        return Target(url, body, 0, grpc=False)

    def _grpc(self, address: str, method: str, message: bytes, name: str) -> Target:
        """Waits until the server answers."""
        with grpc.insecure_channel(address) as channel:
            call = channel.unary_unary(method)
            answer = _until(lambda: call(message, timeout=10, wait_for_ready=True), name)
        body = self._folder / f"{name}.bin"
        body.write_bytes(b"\0" + _length(message, ">"))
        return Target(f"http://{address}{method}", body, 5 + len(answer))

    def _start(self, environment: str, script: str, copies: int = 1, *arguments: str) -> str:
        """The address of a server that starts."""
        python, port = environments.python(environment), _free_port()
        command = [python, str(environments.path_of(script)), str(self._folder), str(port), *arguments]
        log = self._stack.enter_context((self._folder / f"{script}.log").open("w"))
        for _ in range(copies):
            process = subprocess.Popen(
                command, env=_environment(), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            self._stack.callback(_end, process)
        return f"127.0.0.1:{port}"


def _environment() -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def _scoring_request(priority: str) -> bytes:
    message = scoring_pb2.ScoreRequest(texts=[TEXT])
    if priority:
        message.priority = scoring_pb2.Priority.Value(priority)
    return message.SerializeToString()


def _length(message: bytes, order: str) -> bytes:
    return struct.pack(f"{order}I", len(message)) + message


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _until(answer: Callable[[], bytes], name: str) -> bytes:
    """The first answer. Raises: CannotMeasure where none comes in time."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            return answer()
        except (grpc.RpcError, OSError) as error:
            if time.monotonic() > deadline:
                raise CannotMeasure(f"{name} does not answer: {error}") from error
            time.sleep(0.2)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """With the processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

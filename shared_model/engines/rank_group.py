"""The processes that compute together. Whatever goes wrong in one ends them all: a sum over ranks that one of them has
left cannot be taken up again."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from socket import socketpair

from shared_model.engines import rank_messages
from shared_model.engines.rank_messages import SILENT_SECONDS, Facts, Kind, Task
from shared_model.errors import EngineLost, OutOfMemory, TandemError
from shared_model.types import Device, Precision

#: Longest start: imports, and weights from memory to the device.
_START_SECONDS = 180.0
_LOOK_SECONDS = 0.2
#: Longest time between the last word of a process and its exit status.
_EXIT_SECONDS = 1.0
#: Ranks find each other through a file; what they send each other stays on this host.
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True)
class Split:
    """A variant that ranks compute together. `threads`: of all ranks on CPU; `gpus`: of each rank on CUDA."""

    precision: Precision
    device: Device
    ranks: int
    threads: int = 1
    gpus: Sequence[int] = ()


@dataclass(eq=False)
class _Member:
    """One rank. `heard`: when it last said anything; `stage`: how far its start is."""

    name: str
    process: "subprocess.Popen[bytes]"
    connection: Connection
    heard: float
    stage: Kind | None = None
    answers: deque[bytes] = field(default_factory=deque)


class RankGroup:
    """`run`, then `end`, by the thread that made it; `ask` by any."""

    facts: Facts

    def __init__(self, split: Split, files: Mapping[str, int]) -> None:
        """`files`: descriptors of a variant's files by name."""
        self._asking = threading.Lock()
        self._asked = deque[Future[list[bytes]]]()
        self._problem: TandemError | None = None
        store = os.memfd_create("store")
        self._members = [_start(split, rank, files, store) for rank in range(split.ranks)]
        os.close(store)

    @property
    def processes(self) -> list[int]:
        return [member.process.pid for member in self._members]

    def run(self, closing: threading.Event, opened: "Callable[[RankGroup], None]") -> TandemError:
        """Start, tell when requests are taken, and watch. Returns why it is over."""
        try:
            self._await(Kind.STARTED, closing)
            for member in self._members:
                member.connection.send_bytes(rank_messages.message(Kind.OPEN))
            self._await(Kind.OPENED, closing)
            opened(self)
            while not closing.is_set():
                self._listen()
                for member in self._members:
                    if _silent(member, SILENT_SECONDS):
                        raise self._lost(f"{member.name} does not answer")
        except TandemError as error:
            return error
        return EngineLost("the engine is closed")

    def ask(self, request: bytes) -> "Future[list[bytes]]":
        """See `Ranks.ask`."""
        future = Future[list[bytes]]()
        with self._asking:
            if self._problem:
                raise self._problem
            self._asked.append(future)
            # Where a rank is gone, `run` says why.
            with contextlib.suppress(OSError):
                for member in self._members:
                    member.connection.send_bytes(request)
        return future

    def end(self, problem: TandemError) -> None:
        """Kill what is left, and fail what was asked."""
        for member in self._members:
            member.process.kill()
            member.process.wait()
        with self._asking:
            self._problem = problem
        for member in self._members:
            member.connection.close()
        for future in self._asked:
            future.set_exception(problem)

    def _await(self, stage: Kind, closing: threading.Event) -> None:
        latest = time.monotonic() + _START_SECONDS
        while any(member.stage is not stage for member in self._members):
            if closing.is_set() or time.monotonic() > latest:
                raise EngineLost(f"the ranks have not started within {_START_SECONDS:g} s")
            self._listen()

    def _listen(self) -> None:
        """Read what ranks say, for a moment. Raises: EngineLost, OutOfMemory."""
        of = {member.connection: member for member in self._members}
        for connection in wait(list(of), _LOOK_SECONDS):
            member = of[connection]  # type: ignore[index]
            try:
                kind, content = rank_messages.read(member.connection.recv_bytes())
            except (EOFError, OSError):
                raise self._lost(f"{member.name} ended") from None
            member.heard = time.monotonic()
            self._hear(member, kind, content)

    def _hear(self, member: _Member, kind: Kind, content: bytes) -> None:
        if kind is Kind.NO_MEMORY:
            raise OutOfMemory(content.decode())
        if kind is Kind.FAILED:
            raise self._lost(f"{member.name} failed: {content.decode()}")
        if kind is Kind.DONE:
            member.answers.append(content)
            if all(it.answers for it in self._members):
                self._asked.popleft().set_result([it.answers.popleft() for it in self._members])
        elif kind is not Kind.BEAT:
            member.stage = kind
            if kind is Kind.OPENED:
                self.facts = Facts.from_bytes(content)

    def _lost(self, symptom: str) -> EngineLost:
        """With the cause, where a rank only shows what another one did to it: one that was killed, or hangs."""
        until = time.monotonic() + _EXIT_SECONDS
        while all(member.process.poll() is None for member in self._members) and time.monotonic() < until:
            time.sleep(0.01)
        for member in self._members:
            if (code := member.process.poll() or 0) < 0:
                return EngineLost(f"{member.name} was ended by {signal.Signals(-code).name}")
        quiet = [member for member in self._members if _silent(member, SILENT_SECONDS / 2)]
        return EngineLost(f"{quiet[0].name} does not answer" if quiet else symptom)


def _silent(member: _Member, seconds: float) -> bool:
    return time.monotonic() - member.heard > seconds


def _start(split: Split, rank: int, files: Mapping[str, int], store: int) -> _Member:
    ours, its = socketpair()
    with its:
        task = Task(
            rank,
            split.ranks,
            split.precision,
            split.device,
            split.gpus[rank] if split.gpus else rank,
            dict(files),
            store,
            its.fileno(),
            os.getpid(),
        )
        process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.rank", task.to_json()],
            # A Spark worker's modules may come from anywhere.
            env=os.environ
            | _LOOPBACK
            | {"OMP_NUM_THREADS": str(max(1, split.threads // split.ranks)), "PYTHONPATH": os.pathsep.join(sys.path)},
            pass_fds=[*files.values(), store, its.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # A Ctrl-C is for the engine's process.
            process_group=0,
        )
    return _Member(f"rank {rank} of {split.ranks}", process, Connection(ours.detach()), time.monotonic())

"""python -m tests.load.generator: a load, sent by a process of its own.

Reads a plan (one JSON line) from stdin, prepares all messages, says "ready"; reads the monotonic time to start at;
sends; writes what became of each call as an .npz to stdout. One thread, one connection, one `select`: about 80 µs of
CPU a call, most of it the kernel's. A call is due when the plan says, whatever became of those before it.
"""

import base64
import contextlib
import gc
import itertools
import json
import math
import select
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import safetensors.numpy

from protos.scoring.v1 import scoring_pb2
from tests.load.calls import Calls
from tests.load.plans import Pacer, Plan, pacer
from tests.load.wire import LOST, Prepared, Wire, prepare

#: Seconds that answers may take after the last call was due.
DRAIN_SECONDS = 5.0
#: gRPC deadline of calls that carry no timeout of their own, and of patient callers.
PATIENT_MS = 10_000
_READ_BYTES = 1 << 18
_LONGEST_WAIT = 0.5


@dataclass
class Load:
    """One run of a plan over a connected socket. `written`: calls that were handed to it, as far as it had room."""

    connection: socket.socket
    wire: Wire
    messages: Sequence[Prepared]
    pacer: Pacer
    seconds: float
    due: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    in_flight: int = 0
    written: int = 0

    def run(self, start: float) -> Calls:
        """Send and receive until all calls have ended, DRAIN_SECONDS after the last was due at the latest."""
        before, messages = time.process_time(), itertools.cycle(self.messages)
        # A connection that breaks takes its calls with it.
        with contextlib.suppress(ConnectionError):
            while not self._finished(start):
                self._step(messages, start)
        self._count_unsent(start)
        wall, cpu = time.monotonic() - start, time.process_time() - before
        due, sent, ended = (np.array(times) for times in (self.due, self.sent, self.ended))
        return Calls(due, sent, ended, np.array(self.status, np.int64), cpu, wall)

    def _step(self, messages: "itertools.cycle[Prepared]", start: float) -> None:
        """Send what is due, wait for answers or for the next call, take answers. Raises: ConnectionError."""
        wait = self._send(messages, start)
        self._write()
        unwritten = [self.connection] if self.wire.outgoing else []
        readable, _, _ = select.select([self.connection], unwritten, [], wait)
        if readable:
            self._read()

    def _finished(self, start: float) -> bool:
        now = time.monotonic() - start
        return self.pacer.over(now) and (not self.in_flight or now > self.seconds + DRAIN_SECONDS)

    def _send(self, messages: "itertools.cycle[Prepared]", start: float) -> float:
        """Begin what is due: seconds until the next call is."""
        while True:
            now = time.monotonic()
            due = self.pacer.next_due(now - start, self.in_flight)
            if due is None:
                return _LONGEST_WAIT if self.in_flight else 0.0
            if due > now - start:
                return due - (now - start)
            self.wire.call(next(messages))
            self.due.append(start + due)
            self.sent.append(math.nan)
            self.ended.append(math.nan)
            self.status.append(LOST)
            self.in_flight += 1

    def _count_unsent(self, start: float) -> None:
        """After a lost connection: what is still due is lost, too."""
        unsent = [start + due for due in self.pacer.rest()]
        self.due += unsent
        self.sent += [math.nan] * len(unsent)
        self.ended += [math.nan] * len(unsent)
        self.status += [LOST] * len(unsent)

    def _write(self) -> None:
        if self.wire.outgoing:
            # Calls that are due together are written together, after the last of them has been made.
            new = len(self.sent) - self.written
            self.sent[self.written :] = [time.monotonic()] * new
            self.written += new
            with contextlib.suppress(BlockingIOError):
                del self.wire.outgoing[: self.connection.send(self.wire.outgoing)]

    def _read(self) -> None:
        data = self.connection.recv(_READ_BYTES)
        if not data:
            raise ConnectionError("the peer has closed")
        now = time.monotonic()
        for stream, status in self.wire.receive(data):
            call = stream // 2
            # A server resets a stream whose deadline has passed after it has sent the status.
            if math.isnan(self.ended[call]):
                self.ended[call], self.status[call] = now, status
                self.in_flight -= 1


def run(plan: Plan, start: float) -> Calls:
    """Run a plan in this process."""
    return prepared(plan).run(start)


def prepared(plan: Plan) -> Load:
    """Connect, and serialise every message before the first is due."""
    host, _, port = plan.address.rpartition(":")
    source = (plan.source, 0) if plan.source else None
    connection = socket.create_connection((host, int(port)), timeout=10, source_address=source)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    deadline_ms = PATIENT_MS if plan.patient else plan.timeout_ms or PATIENT_MS
    wire = Wire(host, plan.method, deadline_ms, plan.token)
    return Load(connection, wire, _messages(plan), pacer(plan), plan.seconds)


def _messages(plan: Plan) -> list[Prepared]:
    given = [prepare(base64.b64decode(it)) for it in plan.messages]
    return given or [_message(plan, text) for text in plan.texts]


def _message(plan: Plan, text: str) -> Prepared:
    request = scoring_pb2.ScoreRequest(texts=[text], priority=plan.priority, timeout_ms=plan.timeout_ms)
    return prepare(request.SerializeToString())


def main() -> None:
    load = prepared(Plan(**json.loads(sys.stdin.readline())))
    print("ready", flush=True)
    start = float(sys.stdin.readline())
    # A pause of ours would be a delay of everybody's.
    gc.disable()
    time.sleep(max(0.0, start - time.monotonic()))
    calls = load.run(start)
    arrays = {name: np.asarray(value) for name, value in vars(calls).items()}
    sys.stdout.buffer.write(safetensors.numpy.save(arrays))


if __name__ == "__main__":
    main()

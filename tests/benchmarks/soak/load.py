"""Callers for hours: calls of every lane, calls that are cancelled, streams that are left, deferred work."""

import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

import grpc

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from realtime_service.client import CallError, Client, Overloaded, Tls, Unavailable
from realtime_service.client.calls import ScoreOptions
from shared_model import demo_messages
from shared_model.types import Priority
from tests.load.workers import Workers

Item = TypeVar("Item")

WAYS: tuple[ScoreOptions, ...] = (
    {"priority": Priority.REAL_TIME},
    {"timeout_ms": 2_000},
    {"priority": Priority.BATCH},
)
#: Seconds between two calls of a caller, two cancelled calls, two streams and two submissions.
CALL_SECONDS, CANCEL_SECONDS, STREAM_SECONDS, SUBMIT_SECONDS = 0.1, 0.1, 2.0, 1.0
#: Submitted requests that are watched together, and how long their ends are awaited: nights and reloads go first.
WATCHED, WATCH_SECONDS = 40, 600.0
#: For so long a caller tries again where submitted work cannot be stored or read now: the error says that it should.
AGAIN_SECONDS = 30.0
#: Cancelled after so many seconds, in turn: before, while and after a call is answered.
_CANCELLED_AFTER = (0.0, 0.001, 0.003, 0.01)


class Load(Workers):
    """Callers of one address, each a thread, while this context lasts. `ended`: how many calls had which end;
    `problems`: the first of those that were lost."""

    def __init__(self, address: str, ca: bytes) -> None:
        self.ended: Counter[str] = Counter()
        self.problems: list[str] = []
        self._client = Client(address, tls=Tls(ca=ca))
        self._channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca))
        self._open_ids: list[str] = []

    def _works(self) -> list[Callable[[], None]]:
        return [self._caller(way) for way in WAYS] + [self._cancel, self._leave_streams, self._submit, self._watch]

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._client.close()
        self._channel.close()

    @property
    def lost(self) -> int:
        return self.ended["lost"]

    def _caller(self, way: ScoreOptions) -> Callable[[], None]:
        def call() -> None:
            for texts in self._until_over(CALL_SECONDS, demo_texts(len(str(way)))):
                self._count("answered", lambda texts=texts: self._client.score(texts, **way))

        return call

    def _cancel(self) -> None:
        stub, texts = ScoringServiceStub(self._channel), demo_texts(7)
        for after in self._until_over(CANCEL_SECONDS, itertools.cycle(_CANCELLED_AFTER)):
            request = scoring_pb2.ScoreRequest(texts=next(texts), priority=scoring_pb2.REAL_TIME)
            call = stub.Score.future(request, timeout=30)
            self._over.wait(after)
            # False for one that has been answered.
            self.ended["cancelled" if call.cancel() else "too late to cancel"] += 1

    def _leave_streams(self) -> None:
        """After a few of many answers."""
        for texts in self._until_over(STREAM_SECONDS, demo_texts(8)):
            stream = self._client.stream(texts * 8, priority=Priority.BATCH)
            self._count("streamed", lambda stream=stream: next(stream))
            stream.close()

    def _submit(self) -> None:
        for number, texts in enumerate(self._until_over(SUBMIT_SECONDS, demo_texts(9))):
            request_id = f"soak-{number}"
            self._count(
                "submitted",
                lambda texts=texts, it=request_id: self._stored(lambda: self._client.submit(it, texts)),
            )
            self._open_ids.append(request_id)

    def _watch(self) -> None:
        """Also after the callers: idle lanes then answer what no night has."""
        while not self._over.wait(SUBMIT_SECONDS) or self._open_ids:
            ids, self._open_ids = self._open_ids[:WATCHED], self._open_ids[WATCHED:]
            if ids:
                self._count("watched", lambda ids=ids: self._watch_together(ids))

    def _watch_together(self, ids: list[str]) -> None:
        left = dict.fromkeys(ids)

        def watch() -> None:
            for ended in self._client.watch(list(left), seconds=WATCH_SECONDS) if left else ():
                del left[ended.request_id]
                self.ended[f"deferred {ended.state}"] += 1
                if ended.answer is None:
                    self._lose(f"{ended.request_id} {ended.state}: {ended.failure}")

        self._stored(watch)

    def _stored(self, call: Callable[[], object]) -> None:
        """Repeats the call, with the same ids, where the service is unavailable: no work is done twice."""
        last = time.monotonic() + AGAIN_SECONDS
        while True:
            try:
                call()
                return
            except Unavailable:
                if time.monotonic() > last:
                    raise
                self.ended["asked again"] += 1
                time.sleep(SUBMIT_SECONDS)

    def _count(self, end: str, call: Callable[[], object]) -> None:
        """A refusal is an answer; every other error loses the call, and its caller goes on."""
        try:
            call()
            self.ended[end] += 1
        except Overloaded:
            self.ended["refused"] += 1
        except Exception as error:  # noqa: BLE001 - it is counted and told
            self._lose(f"{end}: {error if isinstance(error, CallError) else repr(error)}")

    def _lose(self, problem: str) -> None:
        print(f"lost: {problem}", file=sys.stderr, flush=True)
        self.ended["lost"] += 1
        self.problems = [*self.problems, problem][:20]

    def _until_over(self, seconds: float, items: Iterator[Item]) -> Iterator[Item]:
        return itertools.takewhile(lambda _: not self._over.wait(seconds), items)


def demo_texts(seed: int) -> Iterator[list[str]]:
    """One to three messages a call."""
    texts = demo_messages.texts(seed)
    for number in itertools.count():
        yield list(itertools.islice(texts, number % 3 + 1))

"""Calls down every path, as a chatbot, a bulk client and a patient one would make them; timed by the caller."""

import contextlib
import itertools
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from functools import partial

from realtime_service.cli import chat
from realtime_service.client import Answer, CallError, Client, DeadlineExceeded
from shared_model import demo_messages, objects
from shared_model.objects import Location, join
from shared_model.types import Priority, ServingPath
from tandem_stack.checks import Problem

LATENCY_CALLS, LATENCY_TIMEOUT_MS = 200, 80
DYNAMIC_CALLS, DYNAMIC_CALLERS, DYNAMIC_TIMEOUT_MS = 200, 4, 500
#: Enough callers to fill batches: at a given rate a call takes callers / rate on average, so that more would only wait.
THROUGHPUT_CALLS, THROUGHPUT_CALLERS = 1_000, 64
PRECOMPUTED_CALLS = 100
DEFERRED_CALLS = 50
#: Calls per second beside the nightly run.
BESIDE_RATE = 20.0
#: A message whose answers by all heads are shown.
EXAMPLE = "Someone stole my card, please block it!"
_SEED = 20_260_116
_WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class _Call:
    """`taken`: the path of the answer, or the status without one."""

    taken: str
    seconds: float
    engine_seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What calls that were meant for one path came to. `elsewhere`: other path or status → calls.

    `engine_seconds`: time of the engines, where a batch's time is shared by its rows; 0 where none ran.
    """

    path: ServingPath
    milliseconds: tuple[float, ...]
    seconds: float
    elsewhere: Counter[str]
    note: str = ""
    callers: int = 1
    engine_seconds: float = 0.0

    @property
    def calls(self) -> int:
        return len(self.milliseconds) + self.elsewhere.total()

    @property
    def per_second(self) -> float:
        return len(self.milliseconds) / self.seconds if self.seconds else 0.0

    def engine_rate(self, streams: int) -> float:
        """Answers per second of the engines alone, if they ran all the time: as many calls at once as there are
        callers and streams. Infinite where no engine ran."""
        at_once = min(self.callers, streams)
        return at_once * len(self.milliseconds) / self.engine_seconds if self.engine_seconds else math.inf

    def percentile(self, share: float) -> float:
        """Nearest rank, in milliseconds; NaN without an answer."""
        ranked = sorted(self.milliseconds)
        return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else math.nan


def every_path(address: str, archive: Location, published_day: date) -> Iterator[Outcome]:
    """One outcome for each path, measured one after the other."""
    fresh = fresh_texts()
    with Client(address) as client:
        chat = partial(client.score, timeout_ms=LATENCY_TIMEOUT_MS)
        yield _measure(ServingPath.LATENCY, chat, itertools.islice(fresh, LATENCY_CALLS), note="1 caller")

        patient = partial(client.score, timeout_ms=DYNAMIC_TIMEOUT_MS)
        note = f"{DYNAMIC_CALLERS} callers, {DYNAMIC_TIMEOUT_MS} ms each"
        yield _measure(ServingPath.DYNAMIC, patient, itertools.islice(fresh, DYNAMIC_CALLS), DYNAMIC_CALLERS, note)

        bulk = partial(client.score, priority=Priority.BATCH)
        note, texts = f"{THROUGHPUT_CALLERS} callers", itertools.islice(fresh, THROUGHPUT_CALLS)
        yield _measure(ServingPath.THROUGHPUT, bulk, texts, THROUGHPUT_CALLERS, note)

        archived = archived_texts(archive, published_day, PRECOMPUTED_CALLS)
        wait_precomputed(client, archived[0])
        yield _measure(ServingPath.PRECOMPUTED, client.score, archived, note="1 caller")
        yield _deferred(client, itertools.islice(fresh, DEFERRED_CALLS))


def every_head(address: str) -> str:
    """The answer to EXAMPLE by each head of the active release, in a line."""
    with Client(address) as client:
        return chat.understood(client.score(EXAMPLE), chat.kinds(client.describe()))


def fresh_texts() -> Iterator[str]:
    """Messages that no archive holds, so that a device must score them."""
    for number, text in enumerate(demo_messages.texts(_SEED)):
        yield f"[{number}] {text}"


def archived_texts(archive: Location, day: date, count: int) -> list[str]:
    """Different messages of one day of the archive, those that can be read."""
    texts: dict[str, None] = {}
    for line in objects.get(join(archive, f"ds={day}", "messages.jsonl")).splitlines():
        try:
            texts[json.loads(line)["text"]] = None
        except (ValueError, KeyError, TypeError):  # the archive's damaged lines
            continue
        if len(texts) == count:
            break
    return list(texts)


def wait_precomputed(client: Client, text: str) -> None:
    """The service learns of a new epoch in the background: until it answers `text` from it.

    Raises: Problem when it does not.
    """
    deadline = time.monotonic() + _WAIT_SECONDS
    while client.score(text).path is not ServingPath.PRECOMPUTED:
        if time.monotonic() > deadline:
            raise Problem(f"no precomputed answer {_WAIT_SECONDS:.0f} s after the scores were published")
        time.sleep(0.2)


@contextlib.contextmanager
def beside_nightly(address: str) -> Iterator["Future[Outcome]"]:
    """Send chat messages at a steady rate from another thread until the context ends; the outcome is ready then."""
    over = threading.Event()

    def paced() -> Iterator[str]:
        started = time.monotonic()
        for number, text in enumerate(fresh_texts()):
            if over.wait(max(0.0, started + number / BESIDE_RATE - time.monotonic())):
                return
            yield text

    def ask() -> Outcome:
        with Client(address) as client:
            chat = partial(client.score, timeout_ms=LATENCY_TIMEOUT_MS)
            note = f"{BESIDE_RATE:.0f}/s while the nightly run worked"
            return _measure(ServingPath.LATENCY, chat, paced(), note=note)

    with ThreadPoolExecutor(1, thread_name_prefix="beside-nightly") as pool:
        try:
            yield pool.submit(ask)
        finally:
            over.set()


def _deferred(client: Client, texts: Iterable[str]) -> Outcome:
    """Submit all, then watch until they have ended; a call's time is that from submission to its end."""
    started = time.monotonic()
    waiting: dict[str, float] = {}
    for number, text in enumerate(texts):
        request_id = f"demo-{time.time_ns()}-{number}"
        client.submit(request_id, text)
        waiting[request_id] = time.monotonic()
    calls: list[_Call] = []
    with contextlib.suppress(DeadlineExceeded):
        for ended in client.watch(waiting, seconds=_WAIT_SECONDS):
            taken = ended.answer.path if ended.answer else ended.state
            calls.append(_Call(taken, time.monotonic() - waiting.pop(ended.request_id)))
    calls += [_Call("no result", math.nan)] * len(waiting)
    return _outcome(ServingPath.DEFERRED, calls, time.monotonic() - started, "from Submit to its result")


def _measure(
    path: ServingPath, ask: Callable[[str], Answer], texts: Iterable[str], callers: int = 1, note: str = ""
) -> Outcome:
    """Call once for each text."""

    def call(text: str) -> _Call:
        started = time.monotonic()
        try:
            answer = ask(text)
        except CallError as error:
            return _Call(error.code().name, time.monotonic() - started)
        engine_seconds = answer.compute_us / 1e6 / max(1, answer.batch_size)
        return _Call(answer.path, time.monotonic() - started, engine_seconds)

    started = time.monotonic()
    with ThreadPoolExecutor(callers) as pool:
        # One caller takes texts as they come; several are given all of them at once.
        calls = [call(text) for text in texts] if callers == 1 else list(pool.map(call, texts))
    return _outcome(path, calls, time.monotonic() - started, note, callers)


def _outcome(path: ServingPath, calls: list[_Call], seconds: float, note: str, callers: int = 1) -> Outcome:
    answers = [call for call in calls if call.taken == path]
    return Outcome(
        path,
        tuple(call.seconds * 1000 for call in answers),
        seconds,
        Counter(call.taken for call in calls if call.taken != path),
        note,
        callers,
        sum(call.engine_seconds for call in answers),
    )

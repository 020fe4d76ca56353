"""Arguments → what is sent, and how the reply is read: what the two clients share."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypedDict, TypeVar

import grpc

from protos.scoring.v1 import scoring_pb2
from realtime_service.client import answers, errors
from realtime_service.client.answers import Answer, Deferred, LastNight
from realtime_service.client.arguments import check_text, check_timeout, on_the_wire, several
from realtime_service.client.errors import CallError, Unavailable
from shared_model.types import MAX_TEXTS, Priority

#: A stream of results that was open for so many seconds is asked for again at little cost.
LASTED_SECONDS = 10.0
#: Seconds a call without a timeout of its own may take.
DEFAULT_DEADLINE = 30.0

Reply = TypeVar("Reply")


class StreamOptions(TypedDict, total=False):
    """`timeout_ms`: how long the caller waits, 1 or more, which also chooses the lane; without it a call may take 30 s,
    which chooses none. `top_k`: labels of each text, 1 to 5, by default 3. `model`: that answers, by default the
    default one; `release`: one of its releases to be answered by, instead of the active one. `allow_deferred`: rather a
    ticket than a refusal when the service is too busy. `lane`: "latency", "dynamic" or "throughput", whatever the rules
    of the router say; one for all texts of a stream."""

    timeout_ms: int | None
    priority: Priority
    top_k: int
    release: str
    model: str
    allow_deferred: bool
    lane: str


class ScoreOptions(StreamOptions, total=False):
    """`text_pairs`: the second text of each pair, for a release that reads pairs. `request_id`: names the request, and
    the ticket it may become; by default one is made up where a ticket may come."""

    text_pairs: str | Sequence[str]
    request_id: str


class SubmitStreamOptions(TypedDict, total=False):
    """As in ScoreOptions; submitted work has no priority. `deliver_within_ms`: without a result by then, from when it
    was stored, it expires; by default it does not."""

    top_k: int
    release: str
    model: str
    deliver_within_ms: int


class SubmitOptions(SubmitStreamOptions, total=False):
    """As in ScoreOptions."""

    text_pairs: str | Sequence[str]


class Watched:
    """Submitted work whose ends are awaited. A stream that has brought some of them is not made again by the channel:
    what is still open is asked for again, once, when its connection breaks. However often, when the stream had lasted:
    the service ends one on which nothing happens."""

    def __init__(
        self, tickets: Mapping[str, str], seconds: float, attempts: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`tickets`: of each request id, "" for one without. `now`: monotonic seconds."""
        self._open = dict(tickets)
        self._now = now
        self._deadline = now() + seconds
        self._repeats = attempts > 1
        self._attempts = attempts
        self._heard = False
        self._asked = now()

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._deadline - self._now())

    def request(self) -> scoring_pb2.WatchResultsRequest:
        self._asked = self._now()
        tickets = list(self._open.values())
        return scoring_pb2.WatchResultsRequest(request_ids=self._open, tickets=tickets if any(tickets) else [])

    def ended(self, message: scoring_pb2.GetResultResponse) -> Deferred:
        self._open.pop(message.request_id, None)
        self._heard = True
        return answers.deferred(message)

    def goes_on(self, error: CallError) -> bool:
        """The stream has ended with an error. Returns whether what is open is asked for again."""
        if not isinstance(error, Unavailable):
            return False
        if self._repeats and self._now() - self._asked >= LASTED_SECONDS:
            return True
        self._attempts -= 1
        return self._attempts > 0 and self._heard


@dataclass(frozen=True, slots=True)
class Call(Generic[Reply]):
    """One call to be made: the method, its message, the seconds it may take, what its reply is read as, the lane that
    it names, and when its seconds began (monotonic), if that is before it is made."""

    method: str
    request: Any
    seconds: float
    read: Callable[[Any], Reply]
    lane: str = ""
    began: float | None = None

    @property
    def left(self) -> float:
        """Seconds until its deadline."""
        return self.seconds if self.began is None else max(0.0, self.began + self.seconds - time.monotonic())


class Scoring:
    """The calls that score texts: one for each 64, to be made in turn, each answer to be added before the next."""

    def __init__(self, texts: str | Sequence[str], options: ScoreOptions) -> None:
        """Raises: InvalidRequest."""
        check_timeout(options.get("timeout_ms"))
        self._texts, self._pairs = several("texts", texts), several("text_pairs", options.get("text_pairs", ()))
        if len(self._texts) > MAX_TEXTS:
            if options.get("allow_deferred"):
                raise errors.invalid(f"allow_deferred: takes 1 to {MAX_TEXTS} texts; `submit` what can wait in parts")
            if self._pairs and len(self._pairs) != len(self._texts):
                raise errors.invalid(f"text_pairs: holds {len(self._pairs)} texts, must hold {len(self._texts)}")
        self._options = options
        self._answers: list[Answer] = []

    def __iter__(self) -> Iterator[Call[Answer]]:
        seconds, began = (self._options.get("timeout_ms") or DEFAULT_DEADLINE * 1000) / 1000, time.monotonic()
        for start in range(0, max(1, len(self._texts)), MAX_TEXTS):
            request = self._request(slice(start, start + MAX_TEXTS))
            read = partial(checked_answer, model=self._options.get("model", ""))
            yield Call("Score", request, seconds, read, self._options.get("lane", ""), began)

    def add(self, answer: Answer) -> None:
        self._answers.append(answer)

    @property
    def answer(self) -> Answer:
        """Of all texts, when each call has been answered."""
        return answers.merged(self._answers)

    def _request(self, part: slice) -> scoring_pb2.ScoreRequest:
        options: dict[str, Any] = {**self._options}
        options.pop("text_pairs", None)
        if self._answers:
            # No answer mixes two releases, though another one was promoted meanwhile.
            options["release"] = self._answers[0].release
            options["model"] = self._answers[0].model
        request = score_request(self._texts[part], self._pairs[part], **options)
        if request.allow_deferred and not request.request_id:
            # Made up here: with one made up by the service, a call that is made again could be deferred twice.
            request.request_id = uuid.uuid4().hex
        return request


def submit(request_id: str, texts: str | Sequence[str], options: SubmitOptions) -> Call[Deferred]:
    return Call("Submit", submission(request_id, texts, options), DEFAULT_DEADLINE, answers.submitted)


def result(request_id: str, ticket: str) -> Call[Deferred]:
    check_text("request_id", request_id)
    request = scoring_pb2.GetResultRequest(request_id=request_id, ticket=ticket)
    return Call("GetResult", request, DEFAULT_DEADLINE, answers.deferred)


def lookup(ids: str | Sequence[str], top_k: int, model: str) -> Call[LastNight]:
    request = scoring_pb2.LookupRequest(ids=several("ids", ids), top_k=top_k, model=model)
    return Call("Lookup", request, DEFAULT_DEADLINE, answers.last_night)


def describe(model: str) -> Call[scoring_pb2.DescribeResponse]:
    request = scoring_pb2.DescribeRequest(model=model)
    return Call("Describe", request, DEFAULT_DEADLINE, lambda message: message)


def submission(
    request_id: str, texts: str | Sequence[str], options: SubmitStreamOptions | SubmitOptions
) -> scoring_pb2.SubmitRequest:
    """Raises: InvalidRequest."""
    check_text("request_id", request_id)
    scoring: dict[str, Any] = {**options}
    within, pairs = scoring.pop("deliver_within_ms", 0), several("text_pairs", scoring.pop("text_pairs", ()))
    request = score_request(several("texts", texts), pairs, request_id=request_id, **scoring)
    return scoring_pb2.SubmitRequest(request=request, deliver_within_ms=within)


def checked_answer(message: scoring_pb2.ScoreResponse, model: str) -> Answer:
    """Raises: InvalidRequest if another model answered than was asked."""
    if model and message.model != model:
        problem = f"model: {model!r} was asked, and {message.release} answered: that replica knows one model, update it"
        raise errors.error_of(grpc.StatusCode.FAILED_PRECONDITION, problem)
    return answers.answer(message)


def score_request(texts: Sequence[str], text_pairs: Sequence[str], **options: Any) -> scoring_pb2.ScoreRequest:
    """Raises: InvalidRequest."""
    return scoring_pb2.ScoreRequest(
        texts=texts,
        text_pairs=text_pairs,
        priority=on_the_wire(options.pop("priority", Priority.UNSPECIFIED)),
        timeout_ms=options.pop("timeout_ms", None) or 0,
        # Sent beside the request.
        **{name: value for name, value in options.items() if name != "lane"},
    )

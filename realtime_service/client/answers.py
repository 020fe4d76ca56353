"""The answers of a service, as frozen values. Each keeps the message of the wire it was read from."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from protos.scoring.v1 import scoring_pb2
from shared_model.types import DeferredState, HeadScore, Label, Score, ServingPath

Known = TypeVar("Known", bound=StrEnum)

_PATHS = {scoring_pb2.Path.Value(path.name): path for path in ServingPath}
_STATES = {scoring_pb2.DeferredState.Value(state.name): state for state in DeferredState}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request of one text or several.

    `results`: one for each text, in order, with further `heads` where the release has several. `path`: what the router
    chose, and `reason` why. `batch_size`: rows of the batch it ran in, 0 without a device. `queue_us`, `compute_us`:
    how long it waited and how long the device took. `slack_us`: how far from its deadline it was, negative when late;
    None when it had none. `ticket`: set, and `results` empty, when the request was deferred (`allow_deferred`): ask
    `result(ticket)`.

    More than 64 texts are several calls: `results` are those of all, `queue_us` and `compute_us` their sums, and the
    rest is the last call's.
    """

    results: tuple[Score, ...]
    path: ServingPath
    reason: str
    release: str
    precision: str
    batch_size: int
    queue_us: int
    compute_us: int
    slack_us: int | None
    ticket: str
    message: scoring_pb2.ScoreResponse = field(repr=False, compare=False)

    @property
    def model(self) -> str:
        """The model that answered; empty if the service is of a version that knows one."""
        return self.message.model

    @property
    def label(self) -> str:
        """Name of the first text's best label: the intent. Raises: LookupError where there are no labels."""
        return self._best.name

    @property
    def score(self) -> float:
        """Probability of `label`. Raises: LookupError where there are no labels."""
        return self._best.score

    @property
    def _best(self) -> Label:
        if not self.results:
            raise LookupError(f"this request was deferred: ask for result({self.ticket!r})")
        if not self.results[0].labels:
            raise LookupError("this release makes embeddings, not labels: see results[0].vector")
        return self.results[0].labels[0]


@dataclass(frozen=True, slots=True)
class Deferred:
    """Where submitted work is. `answer` once published, `failure` once failed; `duplicate`: submitted before. It has
    `ended` when it was published, failed or expired.

    `computed_by`: "idle", a lane with nothing better to do, or "nightly", the Spark run. `ticket`: the secret that a
    service may ask for with `result` and `watch`; the client that has submitted the work remembers it.
    """

    request_id: str
    state: DeferredState
    duplicate: bool = False
    answer: Answer | None = None
    computed_by: str = ""
    failure: str = ""
    ticket: str = field(default="", repr=False)
    message: scoring_pb2.SubmitResponse | scoring_pb2.GetResultResponse | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def ended(self) -> bool:
        return self.state.ended


@dataclass(frozen=True, slots=True)
class LastNight:
    """Scores that last night's run published. `results`: one for each id, in order, None where the night has no message
    of it. `ds`: the day of its messages; `release`: that scored them."""

    results: tuple[Score | None, ...]
    ds: str
    release: str
    precision: str
    message: scoring_pb2.LookupResponse = field(repr=False, compare=False)

    @property
    def model(self) -> str:
        """The model of the release."""
        return self.message.model


def answer(message: scoring_pb2.ScoreResponse) -> Answer:
    return Answer(
        results=tuple(_score(result) for result in message.results),
        path=_known(_PATHS, message.path),
        reason=message.reason,
        release=message.release,
        precision=message.precision,
        batch_size=message.batch_size,
        queue_us=message.queue_us,
        compute_us=message.compute_us,
        slack_us=message.slack_us if message.HasField("slack_us") else None,
        ticket=message.ticket.request_id,
        message=message,
    )


def merged(parts: Sequence[Answer]) -> Answer:
    """One answer of those to the parts of one request."""
    if len(parts) == 1:
        return parts[0]
    message = scoring_pb2.ScoreResponse()
    message.CopyFrom(parts[-1].message)
    del message.results[:]
    for part in parts:
        message.results.extend(part.message.results)
    message.queue_us = sum(part.queue_us for part in parts)
    message.compute_us = sum(part.compute_us for part in parts)
    return answer(message)


def submitted(message: scoring_pb2.SubmitResponse) -> Deferred:
    state = _known(_STATES, message.state)
    return Deferred(message.request_id, state, message.duplicate, ticket=message.ticket, message=message)


def deferred(message: scoring_pb2.GetResultResponse) -> Deferred:
    return Deferred(
        request_id=message.request_id,
        state=_known(_STATES, message.state),
        answer=answer(message.response) if message.HasField("response") else None,
        computed_by=message.computed_by,
        failure=message.failure,
        message=message,
    )


def last_night(message: scoring_pb2.LookupResponse) -> LastNight:
    results = tuple(_score(it.result) if it.HasField("result") else None for it in message.results)
    return LastNight(results, message.ds, message.release, message.precision, message)


class _Heads(Mapping[str, HeadScore]):
    """The answers of further heads, each read when it is asked for: callers who ask for none do not wait for them."""

    def __init__(self, result: scoring_pb2.Result) -> None:
        self._result = result

    def __getitem__(self, name: str) -> HeadScore:
        # A map of protobuf makes what it does not have.
        if name not in self._result.heads:
            raise KeyError(name)
        head = self._result.heads[name]
        return HeadScore(_labels(head.labels), tuple(head.vector), head.abstained)

    def __iter__(self) -> Iterator[str]:
        # A map on the wire has no order.
        return iter(sorted(self._result.heads))

    def __len__(self) -> int:
        return len(self._result.heads)

    def __repr__(self) -> str:
        return repr(dict(self))


def _score(result: scoring_pb2.Result) -> Score:
    vector = tuple(result.vector)
    return Score(_labels(result.labels), result.tokens, result.truncated, vector, _Heads(result), result.abstained)


def _labels(labels: Iterable[scoring_pb2.Label]) -> tuple[Label, ...]:
    return tuple(Label(label.name, label.score) for label in labels)


def _known(names: Mapping[int, Known], number: int) -> Known:
    if number not in names:
        raise ValueError(
            f"the service answered {number}, which this client does not know: it is older than the service"
        )
    return names[number]

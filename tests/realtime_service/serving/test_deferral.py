"""A refused request with `allow_deferred` becomes deferred work; only a stored request gets a ticket."""

import os
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from protos.scoring.v1.storage_pb2 import DeferredWork
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings
from tests.realtime_service.conftest import eventually
from tests.realtime_service.rollout.stage import Stage, staged

pytestmark = pytest.mark.heavy

#: More texts than the queue of the dynamic lane holds, so that the request is always refused.
REFUSED = ["where is my card", "card", "please"]
REFUSED_CODE = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage"), TANDEM_DYNAMIC_CONCURRENCY="2", TANDEM_HARVEST="false") as made:
        yield made


@pytest.fixture
def stub(stage: Stage) -> Iterator[ScoringServiceStub]:
    with redis.Redis.from_url(stage.redis.url) as client:
        client.delete(keys.deferred_stream())
    with grpc.insecure_channel(stage.replica.address) as channel:
        stub = ScoringServiceStub(channel)
        eventually(lambda: stub.Describe(scoring_pb2.DescribeRequest(), timeout=10).redis_available)
        yield stub


def stored(stage: Stage) -> list[scoring_pb2.ScoreRequest]:
    with redis.Redis.from_url(stage.redis.url) as client:
        entries = client.xrange(keys.deferred_stream())
    return [DeferredWork.FromString(fields[b"work"]).request for _, fields in entries]


def refusal(call: Callable[[], Any]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value


def score(stub: ScoringServiceStub, **fields: Any) -> scoring_pb2.ScoreResponse:
    return stub.Score(scoring_pb2.ScoreRequest(**{"texts": REFUSED, **fields}), timeout=20)


def test_n_texts_count_as_n_and_are_admitted_all_or_none(stage: Stage, stub: ScoringServiceStub) -> None:
    error = refusal(lambda: score(stub))
    assert (error.code(), error.details()[:24]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "the dynamic lane is full")
    assert len(score(stub, texts=REFUSED[:2]).results) == 2
    # No text of the refused request stayed in the queue, or two would not have fitted.
    assert len(score(stub, texts=REFUSED[:2]).results) == 2


def test_no_request_is_deferred_without_allow_deferred(stage: Stage, stub: ScoringServiceStub) -> None:
    refusal(lambda: score(stub, request_id="not-asked-for"))
    assert stored(stage) == []


def test_an_admitted_request_is_answered_although_it_may_be_deferred(stage: Stage, stub: ScoringServiceStub) -> None:
    answer = score(stub, texts=["card"], allow_deferred=True)
    assert (answer.path, answer.HasField("ticket"), len(answer.results)) == (scoring_pb2.DYNAMIC, False, 1)
    assert stored(stage) == []


def test_a_refused_request_that_may_be_deferred_gets_a_ticket(stage: Stage, stub: ScoringServiceStub) -> None:
    answer = score(stub, allow_deferred=True, request_id="mine", top_k=2, timeout_ms=900, priority=scoring_pb2.NORMAL)
    assert (answer.ticket.request_id, answer.request_id, answer.path) == ("mine", "mine", scoring_pb2.DEFERRED)
    assert not answer.results
    assert "the dynamic lane is full" in answer.reason
    # Deadline and priority do not apply to a deferred request.
    assert stored(stage) == [scoring_pb2.ScoreRequest(texts=REFUSED, top_k=2, request_id="mine")]
    state = stub.GetResult(scoring_pb2.GetResultRequest(request_id="mine"), timeout=10).state
    assert state == scoring_pb2.ACCEPTED
    # A repeated request gets the same ticket.
    again = score(stub, allow_deferred=True, request_id="mine", top_k=2).ticket
    assert (again, len(again.ticket)) == (answer.ticket, 22)
    # Its id is taken: another request is refused.
    assert refusal(lambda: score(stub, allow_deferred=True, request_id="mine")).code() is REFUSED_CODE
    assert len(stored(stage)) == 1


def test_a_request_without_an_id_gets_one(stage: Stage, stub: ScoringServiceStub) -> None:
    tickets = {score(stub, allow_deferred=True).ticket.request_id for _ in range(3)}
    assert len(tickets) == 3
    assert {request.request_id for request in stored(stage)} == tickets


def test_a_request_on_a_stream_gets_its_ticket_there(stage: Stage, stub: ScoringServiceStub) -> None:
    wanted = [
        scoring_pb2.ScoreRequest(texts=REFUSED, request_id="may wait", allow_deferred=True),
        scoring_pb2.ScoreRequest(texts=REFUSED, request_id="may not"),
    ]
    answers = {it.request_id: it for it in stub.ScoreStream(iter(wanted), timeout=20)}
    assert answers["may wait"].response.ticket.request_id == "may wait"
    error = answers["may not"].error
    assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert error.retry_after_ms >= 1


def test_a_request_ends_in_one_outcome(stage: Stage, stub: ScoringServiceStub) -> None:
    before = ends(stage)
    score(stub, allow_deferred=True)
    refusal(lambda: score(stub))
    score(stub, texts=["card"])
    assert grown(stage, before) == {"deferred": 1, "refused": 1, "met": 1}


def test_a_submission_that_is_not_accepted_is_counted_once(stage: Stage, stub: ScoringServiceStub) -> None:
    """Alone and on a stream: of a model that is not served, with a text that has none, and with an id that is taken."""
    text = scoring_pb2.ScoreRequest(texts=["card"], request_id="counted")
    wrong = [
        scoring_pb2.ScoreRequest(texts=["card"], request_id="model", model="other"),
        scoring_pb2.ScoreRequest(texts=[""], request_id="empty"),
        scoring_pb2.ScoreRequest(texts=["another"], request_id="counted"),
    ]
    before = ends(stage)
    stub.Submit(scoring_pb2.SubmitRequest(request=text), timeout=20)
    submissions = [scoring_pb2.SubmitRequest(request=it) for it in wrong]
    for it in submissions:
        refusal(lambda it=it: stub.Submit(it, timeout=20))
    outcomes = [it for answer in stub.SubmitStream(iter(submissions), timeout=20) for it in answer.outcomes]
    assert [it.HasField("error") for it in outcomes] == [True] * len(wrong)
    assert grown(stage, before) == {"deferred": 1, "invalid": 6}


def grown(stage: Stage, before: dict[str, float]) -> dict[str, float]:
    counts = {outcome: count - before.get(outcome, 0) for outcome, count in ends(stage).items()}
    return {outcome: count for outcome, count in counts.items() if count}


def ends(stage: Stage) -> dict[str, float]:
    """The number of requests, by outcome."""
    text = urllib.request.urlopen(stage.replica.metrics).read().decode()  # noqa: S310 - our own loopback address
    counts: dict[str, float] = {}
    for outcome, count in re.findall(
        r'^tandem_requests_total\{model="[^"]*",outcome="(\w+)",path="\w+"\} (\S+)$', text, re.MULTILINE
    ):
        counts[outcome] = counts.get(outcome, 0) + float(count)
    return counts


def test_without_redis_the_refusal_stands_and_nothing_is_acknowledged(stage: Stage, stub: ScoringServiceStub) -> None:
    assert stage.redis.pid
    # A frozen Redis accepts commands and does not answer: a request that may not be stored gets no ticket.
    os.kill(stage.redis.pid, signal.SIGSTOP)
    frozen = refusal(lambda: score(stub, allow_deferred=True, request_id="frozen", timeout_ms=500))
    os.kill(stage.redis.pid, signal.SIGKILL)
    eventually(lambda: not stub.Describe(scoring_pb2.DescribeRequest(), timeout=10).redis_available)
    killed = refusal(lambda: score(stub, allow_deferred=True, request_id="killed"))
    for error in (frozen, killed):
        assert (error.code(), error.details()[:24]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "the dynamic lane is full")
    before, lost = ends(stage), scoring_pb2.SubmitRequest(request=scoring_pb2.ScoreRequest(texts=["card"]))
    lost.request.request_id = "lost"
    assert refusal(lambda: stub.Submit(lost, timeout=20)).code() is grpc.StatusCode.UNAVAILABLE
    (answer,) = stub.SubmitStream(iter([lost]), timeout=20)
    assert answer.outcomes[0].error.code == grpc.StatusCode.UNAVAILABLE.value[0]
    assert grown(stage, before) == {"refused": 2}
    with RedisServer(StateSettings(state=Path(stage.folder))):
        eventually(lambda: stub.Describe(scoring_pb2.DescribeRequest(), timeout=10).redis_available)
        assert score(stub, allow_deferred=True, request_id="back").ticket.request_id == "back"
        unknown = refusal(lambda: stub.GetResult(scoring_pb2.GetResultRequest(request_id="killed"), timeout=10))
        assert unknown.code() is grpc.StatusCode.NOT_FOUND

"""Two real replicas, one of which is taken away while both clients call: nobody may notice."""

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from realtime_service.client import AsyncClient, Client, DeadlineExceeded, InvalidRequest
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.settings import StateSettings
from shared_model.types import DeferredState, ServingPath
from tests.realtime_service.client.faces import FACES, Face
from tests.realtime_service.client.load import Callers
from tests.realtime_service.conftest import RunningService, eventually, start_service
from tests.realtime_service.rollout import tiny_releases

pytestmark = pytest.mark.heavy

#: Far more than any call needs, so that no failure hides behind a deadline.
PATIENCE_MS = 10_000
both = pytest.mark.parametrize("face", FACES, ids=["threads", "loop"])


Start = Callable[[str], RunningService]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts replicas of one small release, on a Redis of their own. Takes the name of its folder."""
    folder = tmp_path_factory.mktemp("replicas")
    store = Store(folder / "releases")
    with RedisServer(StateSettings(state=folder)) as redis:
        pointer.promote(store, None, tiny_releases.seal(store, "tiny").id)
        yield lambda name: start_service(folder / name, folder / "releases", REDIS_URL=redis.url)


@pytest.fixture(scope="module")
def stays(start: Start) -> Iterator[RunningService]:
    running = start("stays")
    yield running
    assert running.stop() == 0


@pytest.fixture
def other(start: Start) -> Iterator[RunningService]:
    """The replica that tests take away."""
    running = start("other")
    yield running
    running.process.send_signal(signal.SIGCONT)
    running.process.kill()
    running.process.wait()


def warmed(load: Callers, calls: int = 200) -> None:
    """Wait until so many more calls have been answered."""
    enough = len(load.answered) + calls
    eventually(lambda: len(load.answered) >= enough or load.failed)


def test_a_replica_that_is_killed_fails_no_call(stays: RunningService, other: RunningService) -> None:
    with Callers([stays.address, other.address], PATIENCE_MS) as load:
        warmed(load)
        killed = time.monotonic()
        other.process.kill()
        warmed(load)
    assert load.failed == []
    # Another attempt was there as soon as the connection broke.
    assert load.longest_since(killed - 0.2) < 2.0


def test_a_replica_that_hangs_fails_no_patient_call_and_is_left_alone(
    stays: RunningService, other: RunningService
) -> None:
    with Callers([stays.address, other.address], PATIENCE_MS) as load:
        warmed(load)
        stopped = time.monotonic()
        other.process.send_signal(signal.SIGSTOP)
        eventually(lambda: time.monotonic() > stopped + 3)
        warmed(load)
        other.process.send_signal(signal.SIGCONT)
        warmed(load)
    assert load.failed == []
    # Those it held came back after two seconds; from then on it is sent nothing.
    assert load.longest_since(stopped - 0.2) < 4.0
    assert load.longest_since(stopped + 2.5) < 1.5


def test_a_call_to_a_replica_that_hangs_ends_with_its_deadline(other: RunningService) -> None:
    with Client(other.address) as client:
        client.score("hello")
        other.process.send_signal(signal.SIGSTOP)
        for _ in range(5):
            started = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                client.score("hello", timeout_ms=300)
            assert 0.29 < time.monotonic() - started < 2


def test_a_replica_that_drains_fails_no_call(stays: RunningService, other: RunningService) -> None:
    with Callers([stays.address, other.address], PATIENCE_MS) as load:
        warmed(load)
        assert other.stop() == 0
        warmed(load)
    assert load.failed == []


@both
def test_a_stream_answers_every_text_and_a_bad_one_in_its_place(service: RunningService, face: Face) -> None:
    bad = {
        1: ("", "texts[0]: is empty"),
        2: ("half \ud83d", "texts[0]: is not valid Unicode: half of a surrogate pair at character 5"),
        3: (None, "texts[0]: is NoneType, must be a str"),
    }
    texts = [
        "my card has not arrived",
        *(text for text, _ in bad.values()),
        *(f"message {number}" for number in range(150)),
    ]
    with face(service.address) as client:
        answers = dict(client.listed("stream", texts, top_k=1))
    assert sorted(answers) == list(range(154))
    assert answers.pop(0).label == "card_arrival"
    for number, (_, says) in bad.items():
        refused = answers.pop(number)
        assert isinstance(refused, InvalidRequest)
        assert refused.details() == says
    assert all(len(answer.results[0].labels) == 1 for answer in answers.values())


async def test_a_stream_takes_texts_that_come_later(service: RunningService) -> None:
    async def later() -> object:
        for text in ("my card has not arrived", "close my account"):
            yield text

    async with AsyncClient(service.address) as client:
        answers = {number: answer async for number, answer in client.stream(later())}
    assert [answers[number].label for number in (0, 1)] == ["card_arrival", "terminate_account"]


def test_a_stream_that_is_left_early_is_over(service: RunningService) -> None:
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        for number in range(1_000_000):
            taken = number
            yield f"message {number}"

    with Client(service.address) as client:
        answers = client.stream(texts())
        next(answers)
        answers.close()
        # Texts are taken as fast as answers are: this many wait at most, between here and there.
        assert taken < 20_000
        assert client.score("and calls go on").results


@both
def test_submitted_work_is_watched_until_it_has_ended(service: RunningService, face: Face) -> None:
    ids = [f"{face.__name__}-{number}" for number in range(5)]
    with face(service.address) as client:
        for request_id in ids:
            assert client.submit(request_id, "close my account").state is DeferredState.ACCEPTED
        ends = client.listed("watch", ids, seconds=30)
    assert sorted(it.request_id for it in ends) == ids
    assert {(it.state, it.answer.label, it.answer.path) for it in ends} == {
        (DeferredState.PUBLISHED, "terminate_account", ServingPath.DEFERRED)
    }

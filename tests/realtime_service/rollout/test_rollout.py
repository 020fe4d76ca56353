"""A replica follows the release pointer under calls: no call is lost, no answer mixes releases, no unfit one serves."""

import re
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import redis

from protos.scoring.v1 import scoring_pb2
from protos.scoring.v1.scoring_pb2_grpc import ScoringServiceStub
from realtime_service.client import Client
from shared_model.__main__ import main as shared_model
from shared_model.releases.store import Release, Store
from shared_model.types import Priority
from tests.realtime_service.conftest import eventually
from tests.realtime_service.heartbeats import kept
from tests.realtime_service.rollout import tiny_releases
from tests.realtime_service.rollout.stage import Callers, Stage, staged, states, wait_for_failure, wait_until_active
from tests.shared_model import small_release

pytestmark = pytest.mark.heavy


@pytest.fixture
def before(stage: Stage, client: Client) -> Release:
    """The active release at the start of the test."""
    release = stage.seal("before", 1)
    stage.promote(release)
    wait_until_active(client, release)
    return release


def test_a_promotion_and_its_rollback_lose_no_call_and_mix_no_answer(
    stage: Stage, client: Client, before: Release
) -> None:
    after = stage.seal("after", 2)
    with Callers(stage.replica.address) as callers:
        eventually(lambda: len(callers.answers) > 100)
        stage.promote(after)
        wait_until_active(client, after)
        # One call may be under way in each thread; calls that start now are answered by the new release.
        assert client.score("card").release == after.id
        assert set(states(client)) == {after.id}
        began = time.monotonic()
        assert stage.rollback() == before.id
        wait_until_active(client, before)
        assert time.monotonic() - began < 60
        assert client.score("card").release == before.id
    assert callers.failed == []
    assert callers.releases == {before.id, after.id}
    for answer in callers.answers:
        assert {result.labels[0].name for result in answer.results} == {stage.favourites[answer.release]}


def test_a_rollback_returns_to_a_release_that_is_still_loaded(stage: Stage, client: Client, before: Release) -> None:
    after = stage.seal("after-kept", 2)
    stage.promote(after)
    wait_until_active(client, after)
    # A kept release answers no call, not even one that pins it.
    assert set(states(client)) == {after.id}
    eventually(lambda: set(client.describe().replicas[0].releases) == {after.id})
    with pytest.raises(grpc.RpcError, match="is not served here"):
        client.score("card", release=before.id)
    # The release could not be loaded again.
    (Path(before.place) / "cpu").rename(Path(before.place) / "gone")
    stage.rollback()
    wait_until_active(client, before)
    answer = client.score("card")
    assert (answer.release, answer.results[0].labels[0].name) == (before.id, stage.favourites[before.id])


def test_commands_that_move_the_pointer_wait_for_the_replica(
    stage: Stage, before: Release, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TANDEM_STATE", str(stage.folder))
    monkeypatch.setenv("TANDEM_REDIS_URL", stage.redis.url)

    waited, crashing = stage.seal("waited", 2), unfit(stage.store, "crash")
    for release in (before, waited, crashing):
        small_release.judge(release, passed=True)

    def move(*command: str) -> tuple[int, str]:
        return shared_model([*command, "--wait"]), capsys.readouterr().out.partition("\n")[2]

    assert move("canary", "--default", waited.id, "--weight=0.1") == (0, "1 of 1 replicas follow\n")
    assert move("rollback") == (0, "1 of 1 replicas follow\n")
    status, says = move("promote", "--default", crashing.id)
    assert status == 1
    assert re.fullmatch(rf"0 of 1 replicas follow\nreplica \S+ does not serve {crashing.id}: .* SIGSEGV.*\n", says)
    assert move("rollback") == (0, "1 of 1 replicas follow\n")


def test_a_replaced_release_is_closed_when_its_time_is_over(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []

    def closed(release: str) -> bool:
        said.append(capfd.readouterr().err)
        return f"release {release} is closed" in "".join(said)

    with staged(tmp_path, TANDEM_KEEP_PREVIOUS_SECONDS="2") as stage, Client(stage.replica.address) as client:
        (first,) = stage.favourites
        after = stage.seal("after", 2)
        stage.promote(after)
        wait_until_active(client, after)
        eventually(lambda: closed(first))
        assert client.score("card").release == after.id


def unfit(store: Store, kind: str) -> Release:
    """An unfit release, sealed like a fit one."""
    numbers = tiny_releases.table(favourite=5)
    if kind == "crash":
        return tiny_releases.seal_graph(store, kind, tiny_releases.embedding(numbers, tiny_releases.crashing))
    if kind == "nan":
        return tiny_releases.seal_graph(store, kind, tiny_releases.embedding(numbers * np.nan))
    if kind == "width":
        return tiny_releases.seal_graph(store, kind, tiny_releases.embedding(numbers[:, :7]))
    if kind == "damaged":
        release = tiny_releases.seal(store, kind, 5)
        weights = Path(release.place) / "cpu" / "model.bin"
        weights.write_bytes(bytes(weights.stat().st_size))
        return release
    assert kind == "unreadable"
    return tiny_releases.seal_files(store, kind, b"<net", b"")


@pytest.mark.parametrize(
    ("kind", "how", "why"),
    [
        ("crash", "crashed", "its probe was ended by SIGSEGV"),
        ("nan", "refused", "some outputs are not finite numbers"),
        ("width", "refused", "the outputs have the shape (1, 7), should have (1, 8)"),
        ("damaged", "refused", "cpu/model.bin does not match its sha256"),
        pytest.param("unreadable", "refused", "its int8 variant cannot be opened: ", marks=pytest.mark.proof),
    ],
)
def test_an_unfit_release_never_answers_and_the_old_one_goes_on(
    stage: Stage, client: Client, before: Release, kind: str, how: str, why: str
) -> None:
    release = unfit(stage.store, kind)
    with Callers(stage.replica.address) as callers:
        stage.promote(release)
        assert why in wait_for_failure(client, release)
        answered = len(callers.answers)
        eventually(lambda: len(callers.answers) > answered + 100)
    assert callers.failed == []
    assert callers.releases == {before.id}
    metrics = urllib.request.urlopen(stage.replica.metrics).read().decode()  # noqa: S310 - our own loopback address
    assert f'tandem_release_failed{{reason="{how}",release="{release.id}"}} 1.0' in metrics
    # The next version of the pointer clears the failure.
    assert stage.rollback() == before.id
    eventually(lambda: set(states(client)) == {before.id})


def test_a_canary_answers_its_share_of_callers_and_each_caller_stays(
    stage: Stage, client: Client, before: Release
) -> None:
    canary = stage.seal("canary", 3)
    stage.start_canary(canary, 0.3)
    eventually(lambda: canary.id in client.describe().replicas[0].releases)
    assert states(client)[canary.id].share == pytest.approx(0.3)

    def ask(number: int) -> set[str]:
        with Client(stage.replica.address, caller_id=f"chatbot {number}") as caller:
            return {caller.score("where is my card").release for _ in range(3)}

    with ThreadPoolExecutor(16) as pool:
        chosen = list(pool.map(ask, range(200)))
    assert all(len(releases) == 1 for releases in chosen)
    # Five standard deviations of 200 draws.
    assert sum(releases == {canary.id} for releases in chosen) / 200 == pytest.approx(0.3, abs=0.16)
    # Callers without an id are identified by their address: those of this host are one caller.
    assert len({ask_on_a_connection_of_its_own(stage.replica.address) for _ in range(20)}) == 1
    # A caller may pin either release.
    assert {client.score("card", release=it.id).release for it in (before, canary)} == {before.id, canary.id}
    stage.rollback()
    eventually(lambda: set(states(client)) == {before.id})
    with pytest.raises(grpc.RpcError, match="is not served here"):
        client.score("card", release=canary.id)


def ask_on_a_connection_of_its_own(address: str) -> str:
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        request = scoring_pb2.ScoreRequest(texts=["where is my card"])
        return ScoringServiceStub(channel).Score(request, timeout=10).release


def test_requests_under_way_end_on_the_release_they_began_with(stage: Stage, client: Client) -> None:
    numbers = tiny_releases.table(favourite=4)
    numbers[tiny_releases.WORDS.index("slowly"), 4] += 1000
    slow = tiny_releases.seal_graph(
        stage.store, "slow", tiny_releases.embedding(numbers, tiny_releases.slow_where_asked)
    )
    stage.promote(slow)
    wait_until_active(client, slow)
    after = stage.seal("after-slow", 5)
    stage.start_canary(after, 0.001)
    eventually(lambda: after.id in client.describe().replicas[0].releases)
    with ThreadPoolExecutor(12) as pool:
        # Each request occupies a stream for a second; the others are queued when the release is replaced: so many that
        # several heartbeats in turn tell of them.
        began = [pool.submit(client.score, "please slowly", priority=Priority.REAL_TIME) for _ in range(12)]
        eventually(lambda: waiting(stage) >= 2)
        stage.promote(after)
        wait_until_active(client, after)
        assert not all(call.done() for call in began)
        assert {call.result().release for call in began} == {slow.id}
    assert client.score("please slowly").release == after.id


def waiting(stage: Stage) -> int:
    """Queued texts of the latency lane, from the replica's heartbeat; 0 while a busy host delays it past its expiry."""
    with redis.Redis.from_url(stage.redis.url) as client:
        return sum(lanes["latency"]["waiting"] for _, lanes in kept(client))

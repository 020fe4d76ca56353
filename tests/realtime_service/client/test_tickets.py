"""Tickets of results, at a service that other hosts can call: the client carries them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from realtime_service.client import Deferred, NotFound
from realtime_service.client.tickets import Tickets
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.types import DeferredState
from tests.realtime_service.client.faces import FACES, Face
from tests.realtime_service.conftest import start_service
from tests.realtime_service.rollout import tiny_releases

pytestmark = pytest.mark.heavy

#: More texts than the queue of the dynamic lane holds, so that the request is always refused.
REFUSED = ["where is my card", "card", "please"]


@pytest.fixture(scope="module")
def address(own_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("tickets")
    store = Store(folder / "releases")
    pointer.promote(store, None, tiny_releases.seal(store, "tiny").id)
    running = start_service(
        folder,
        Path(store.files.root),
        TANDEM_GRPC_ADDRESS="0.0.0.0:0",
        TANDEM_INSECURE="yes",
        TANDEM_ADVERTISED_HOST="127.0.0.1",
        TANDEM_DYNAMIC_CONCURRENCY="2",
    )
    yield running.address
    assert running.stop() == 0


@pytest.mark.parametrize("face", FACES)
def test_a_client_reads_what_it_has_submitted_and_another_one_needs_the_ticket(address: str, face: Face) -> None:
    names = [f"{face.__name__}-{number}" for number in range(4)]
    with face(address) as client, face(address) as other:
        tickets = {names[0]: client.submit(names[0], "card").ticket}
        streamed = client.listed("submit_stream", [(name, "card") for name in names[1:3]])
        tickets |= {name: it.ticket for name, it in streamed}
        answer = client.score(REFUSED, allow_deferred=True, request_id=names[3])
        tickets[answer.ticket] = answer.message.ticket.ticket
        assert list(tickets) == names
        assert {it.state for it in client.listed("watch", names)} == {DeferredState.PUBLISHED}
        for wrong in ({}, dict.fromkeys(names, tickets[names[0]])):
            with pytest.raises(NotFound):
                other.listed("watch", names, tickets=wrong)
        assert {it.request_id for it in other.listed("watch", names, tickets=tickets)} == set(names)
        for name in names:
            assert client.result(name).ended
            with pytest.raises(NotFound):
                other.result(name)
            assert other.result(name, ticket=tickets[name]).ended


def test_only_so_many_tickets_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realtime_service.client.tickets.MAX_TICKETS", 3)
    tickets = Tickets()
    for number in range(5):
        tickets.kept(Deferred(str(number), DeferredState.ACCEPTED, ticket=f"t{number}"))
    assert [tickets[str(number)] for number in range(5)] == ["", "", "t2", "t3", "t4"]
    assert tickets.of(["4", "x"], {"4": "given"}) == {"4": "given", "x": ""}

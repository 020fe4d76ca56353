"""Both clients with TLS: what they trust, what they show, how a mismatch reads, and where a token may not go."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from realtime_service.client import Tls, Unavailable
from realtime_service.rpc import credentials
from shared_model.errors import BadInput
from shared_model.tls import CertificateFiles
from tests.certified import Certified, certified
from tests.realtime_service.client.faces import FACES
from tests.realtime_service.client.scripted import Script, scripted
from tests.realtime_service.client.test_calls import ANSWER

TOKEN = "shh.shh.shh"  # noqa: S105


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def own(tmp_path: Path) -> Certified:
    return certified(tmp_path / "own")


def secure(own: Certified, mutual: bool = False) -> Any:
    """A scripted service with TLS, and its script."""
    return scripted(ANSWER, credentials=credentials.listener(CertificateFiles(own.settings(mutual))))


@pytest.fixture
def script(own: Certified) -> Iterator[Script]:
    with secure(own) as running:
        yield running


def failure(face: Any, address: str, tls: bool | Tls) -> str:
    with face(address, tls=tls, attempts=1) as client, pytest.raises(Unavailable) as error:
        client.score("text")
    (line,) = str(error.value).splitlines()
    return line


def test_a_service_is_trusted_by_its_authority_as_a_file_or_as_bytes(face: Any, own: Certified, script: Script) -> None:
    for ca in (own.ca, str(own.ca), own.ca.read_bytes()):
        with face(script.address, tls=Tls(ca=ca), token=TOKEN) as client:
            assert client.score("text").release == "r-1"
    assert script.asked[-1][2]["authorization"] == f"Bearer {TOKEN}"


def test_a_caller_shows_its_certificate_where_the_service_asks_for_one(face: Any, own: Certified) -> None:
    with secure(own, mutual=True) as script:
        with face(script.address, tls=Tls(own.ca, own.cert, own.key)) as client:
            assert client.score("text").release == "r-1"
        assert "may want TLS (`--tls`, `--ca`), or a certificate of yours" in failure(face, script.address, Tls(own.ca))


def test_a_mismatch_says_what_to_do(face: Any, own: Certified, script: Script, tmp_path: Path) -> None:
    at, other = f"UNAVAILABLE: the service at {script.address}", certified(tmp_path / "other")
    assert failure(face, script.address, False).startswith(f"{at} closed the connection: it may want TLS")
    assert failure(face, script.address, Tls(other.ca)).startswith(f"{at} has a certificate that is not trusted here")
    assert failure(face, script.address, Tls(own.ca, name="elsewhere")).startswith(f"{at} has a certificate for other")
    with scripted(ANSWER) as plain:
        line = f"UNAVAILABLE: the service at {plain.address} has no TLS: call it without"
        assert failure(face, plain.address, Tls(own.ca)) == line


def test_several_replicas_are_called_by_the_name_of_their_certificates(
    face: Any, own: Certified, script: Script
) -> None:
    with secure(own) as second:
        for addresses, name in (
            (f"{script.address},{second.address}", ""),
            ([script.address, second.address.replace("127.0.0.1", "localhost")], "localhost"),
        ):
            with face(addresses, tls=Tls(own.ca, name=name)) as client:
                assert [client.score("text").release for _ in range(4)] == ["r-1"] * 4
        with pytest.raises(BadInput, match=r"^tls: several hosts: name what all their certificates carry"):
            face("127.0.0.1:1,127.0.0.2:2", tls=Tls(own.ca))
        assert second.asked


def test_what_cannot_secure_a_connection_is_refused_at_once(face: Any, own: Certified) -> None:
    with pytest.raises(BadInput, match=r"^tls: a certificate and its key go together$"):
        face("127.0.0.1:1", tls=Tls(cert=own.cert))
    with pytest.raises(BadInput, match=r"^ca: /absent.pem: cannot be read: No such file or directory$"):
        face("127.0.0.1:1", tls=Tls("/absent.pem"))
    with pytest.raises(BadInput, match=rf"^ca: {__file__}: is no PEM file$"):
        face("127.0.0.1:1", tls=Tls(__file__))
    with pytest.raises(BadInput, match=r"^key: its bytes: is no PEM file$"):
        face("127.0.0.1:1", tls=Tls(cert=own.cert, key=b"secret"))


@pytest.mark.parametrize("address", ["replica-1:1", "10.0.0.7:1", "127.0.0.1:1,10.0.0.7:1", "dns:///replica-1:1"])
def test_a_token_is_not_sent_to_other_hosts_in_clear(face: Any, address: str, own: Certified) -> None:
    for token in (TOKEN, lambda: TOKEN):
        with pytest.raises(BadInput, match=r"^token: would travel to .* in clear") as error:
            face(address, token=token)
        assert TOKEN not in str(error.value)
    for allowed in ({"token": ""}, {"token": TOKEN, "insecure": True}, {"token": TOKEN, "tls": Tls(own.ca, name="x")}):
        with face(address, **allowed):
            pass


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/run/tandem.sock", "ipv4:127.0.0.1:1"]
)
def test_a_token_may_go_to_this_host(face: Any, address: str) -> None:
    with face(address, token=TOKEN):
        pass

"""Redis and Sentinels over TLS: whom clients trust, what they show, and that no message has a password."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from cryptography import x509

from shared_model.commands import certificates
from shared_model.errors import SettingError
from shared_model.redis_store import clients
from shared_model.redis_store.server import RedisServer
from shared_model.settings import StateSettings
from tests.certified import Certified, certified
from tests.redis_nodes import Node, running, sentinel
from tests.redis_tls import HOST, Front, fronts

pytestmark = pytest.mark.heavy

#: Seconds; a machine that runs tests may pause.
WAITS = {"timeout": 10.0, "connect_timeout": 10.0}
PASSWORD, SENTINELS = "masters-own", "sentinels-own"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return certified(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return certified(tmp_path_factory.mktemp("other"))


@dataclass
class Store:
    """A master and a Sentinel with passwords of their own, and the URLs to call them with TLS."""

    master: Front
    sentinel: Front
    url: str
    watched: str


@pytest.fixture(scope="module")
def store(own: Certified, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("redis")
    master = Node(folder / "master")
    watching = sentinel(folder / "sentinel", master)
    # What Sentinels hand out is the address with TLS.
    written = folder / "sentinel" / "sentinel.conf"
    written.write_text(written.read_text().replace("127.0.0.1", HOST) + f"sentinel auth-pass tandem {PASSWORD}\n")
    with running(master), fronts(own, master, watching) as (front, asked_at), running(watching):
        with watching.client() as asked:
            assert asked.execute_command("ACL", "SETUSER", "asker", "on", f">{SENTINELS}", "+@all")
            assert asked.execute_command("ACL", "SETUSER", "default", "off")
        with master.client() as changed:
            changed.config_set("requirepass", PASSWORD)
        asking = f"sentinel_username=asker&sentinel_password={SENTINELS}"
        yield Store(
            front,
            asked_at,
            f"rediss://:{PASSWORD}@{HOST}:{master.port}",
            f"rediss+sentinel://:{PASSWORD}@{HOST}:{watching.port}/tandem?{asking}",
        )


def trusting(url: str, ca: Path) -> str:
    return clients.with_query(url, {"ssl_ca_certs": str(ca)})


@pytest.mark.parametrize("form", ["url", "watched"])
async def test_both_clients_call_with_tls_whom_their_authority_vouches_for(
    form: str, store: Store, own: Certified
) -> None:
    url, before = trusting(getattr(store, form), own.ca), store.master.secure
    with clients.connect(url, **WAITS) as client:
        assert client.set("key", "by threads")
    async with clients.connect_asyncio(url, **WAITS) as other:
        assert await other.get("key") == b"by threads"
    assert store.master.secure == before + 2
    # No other process asks the Sentinel through its front.
    assert store.sentinel.plain == 0


@pytest.mark.parametrize("form", ["url", "watched"])
def test_the_end_of_the_certificate_that_redis_shows_is_read(form: str, store: Store, own: Certified) -> None:
    shown = x509.load_pem_x509_certificate((own.folder / HOST / certificates.CERTIFICATE).read_bytes())
    url = trusting(getattr(store, form), own.ca)
    assert clients.certificate_end(url, 10.0) == shown.not_valid_after_utc.timestamp()


def test_a_redis_without_tls_has_no_certificate_that_ends() -> None:
    assert clients.certificate_end("redis://192.0.2.1:1", 0.1) == 0


@pytest.mark.parametrize("form", ["url", "watched"])
async def test_another_authority_is_refused_and_no_message_has_a_password(
    form: str, store: Store, other: Certified, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url, before = trusting(getattr(store, form), other.ca), store.master.secure
    with clients.connect(url, **WAITS) as client, pytest.raises(redis.RedisError) as refused:
        client.ping()
    async with clients.connect_asyncio(url, **WAITS) as later:
        with pytest.raises(redis.RedisError) as refused_later:
            await later.ping()
    assert store.master.secure == before
    for said in (str(refused.value), str(refused_later.value), caplog.text):
        assert PASSWORD not in said
        assert SENTINELS not in said


def test_a_wrong_password_of_sentinels_is_refused_without_naming_it(store: Store, own: Certified) -> None:
    url = trusting(store.watched.replace(SENTINELS, "another"), own.ca)
    with clients.connect(url, **WAITS) as client, pytest.raises(redis.RedisError) as refused:
        client.ping()
    assert "another" not in str(refused.value)


@pytest.mark.parametrize("form", ["url", "watched"])
def test_settings_name_the_files_that_the_url_does_not(
    form: str, store: Store, own: Certified, other: Certified
) -> None:
    files = {"redis_ca": str(own.ca), "redis_cert": str(own.cert), "redis_key": str(own.key)}
    url = getattr(store, form)
    with RedisServer(StateSettings(redis_url=url, **files)) as server, clients.connect(server.url, **WAITS) as client:
        assert client.ping()
    # Those in the URL win.
    wrong = trusting(url, other.ca)
    assert trusting(wrong, own.ca) == wrong
    with (
        RedisServer(StateSettings(redis_url=wrong, **files)) as server,
        clients.connect(server.url, **WAITS) as client,
        pytest.raises(redis.RedisError),
    ):
        client.ping()


def test_files_without_tls_and_files_that_are_not_there_are_refused(own: Certified) -> None:
    with pytest.raises(SettingError, match=r"^TANDEM_REDIS_URL: files for TLS are set, and the URL has none"):
        RedisServer(StateSettings(redis_url=f"redis://:{PASSWORD}@{HOST}:1", redis_ca=str(own.ca)))
    with pytest.raises(
        SettingError, match=r"^TANDEM_REDIS_URL: /absent.pem, which is set for its TLS, cannot be read$"
    ):
        RedisServer(StateSettings(redis_url=f"rediss://:{PASSWORD}@{HOST}:1", redis_ca="/absent.pem"))


@pytest.mark.parametrize(
    ("url", "warns"),
    [
        (f"redis://:{PASSWORD}@redis:6379/0", True),
        (f"redis+sentinel://:{PASSWORD}@127.0.0.1:1,ten:2/tandem?sentinel_password={PASSWORD}", True),
        (f"rediss://:{PASSWORD}@redis:6379/0", False),
        (f"rediss+sentinel://:{PASSWORD}@one:1/tandem", False),
        (f"redis://:{PASSWORD}@127.0.0.1:6379/0", False),
        (f"redis+sentinel://:{PASSWORD}@127.0.0.1:1,[::1]:2/tandem", False),
        ("unix:///run/redis.sock", False),
    ],
)
def test_a_plain_connection_to_another_host_is_warned_of_once(
    url: str, warns: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TANDEM_PLAIN_REDIS", "")
    for _ in range(2):
        RedisServer(StateSettings(redis_url=url))
    lines = [it.getMessage() for it in caplog.records]
    assert len(lines) == warns
    assert not any(PASSWORD in line for line in lines)

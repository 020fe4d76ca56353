"""Whole services with mutual TLS: a supervisor's workers, a router, and the rule for other addresses."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from realtime_service.__main__ import main
from realtime_service.client import Client, Tls, Unavailable
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.settings import StateSettings
from tests.browser import chromium
from tests.certified import Certified, certified, read, scraped, serial
from tests.realtime_service.conftest import RunningService, eventually, start_service
from tests.realtime_service.process.test_lifecycle import serve_and_fail
from tests.realtime_service.rollout import tiny_releases

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return certified(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls(own: Certified) -> Tls:
    return Tls(own.ca, own.cert, own.key)


@pytest.fixture(scope="module")
def running(own: Certified, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunningService]]:
    """A supervised endpoint with one worker, and a router."""
    folder = tmp_path_factory.mktemp("services")
    store = Store(folder / "releases")
    pointer.promote(store, None, tiny_releases.seal(store, "tiny").id)
    root = Path(store.files.root)
    with RedisServer(StateSettings(state=folder)) as server:
        shared = {"REDIS_URL": server.url, "TANDEM_HTTP_ADDRESS": "127.0.0.1:0", **own.environment(mutual=True)}
        endpoint = start_service(folder / "endpoint", root, TANDEM_WORKERS="1", TANDEM_LANES="dynamic", **shared)
        router = start_service(folder / "router", root, TANDEM_LANES="none", **shared)
        yield {"endpoint": endpoint, "router": router}
        assert (router.stop(), endpoint.stop()) == (0, 0)


def test_a_router_forwards_to_a_worker_over_mutual_tls(running: dict[str, RunningService], tls: Tls) -> None:
    with Client(running["router"].address, tls=tls) as client:
        assert client.score("where is my card").release.startswith("tiny-")
        # The router's, and the worker's own.
        eventually(lambda: len(client.describe().replicas) == 2)
        addresses = {it.address: it.tls for it in client.describe().replicas}
    assert all(addresses.values())
    assert running["endpoint"].address not in addresses
    for address in (*addresses, running["endpoint"].address):
        for refused in (Tls(tls.ca), False):
            with Client(address, tls=refused, attempts=1) as client, pytest.raises(Unavailable):
                client.describe()


def test_a_renewal_reaches_workers_routers_and_metrics(running: dict[str, RunningService], own: Certified) -> None:
    for service in running.values():
        assert service.metrics.startswith("https://127.0.0.1:")
        assert service.http.startswith("https://127.0.0.1:")
    urls = [url for it in running.values() for url in (f"grpc://{it.address}", it.metrics, it.http)]
    listeners = [url.partition("://")[2] for url in urls]
    before = {serial(address, own.ca, own) for address in listeners}
    own.renew()
    after = {serial(address, own.ca, own) for address in listeners}
    assert len(before) == len(after) == 1
    assert before != after
    with Client(running["router"].address, tls=Tls(own.ca, own.cert, own.key)) as client:
        assert client.score("where is my card").release.startswith("tiny-")


def test_metrics_want_a_certificate_of_who_scrapes(running: dict[str, RunningService], own: Certified) -> None:
    url = running["router"].metrics
    with pytest.raises(OSError):  # noqa: PT011 - the connection is closed in one of several ways
        scraped(url, own.ca)
    page = scraped(url, own.ca, own)
    assert "tandem_redis_up 1.0" in page
    # By this series an alert sees which lanes are served: not by a router.
    assert "tandem_lane_capacity_texts_per_second{" not in page


def test_a_browser_shows_the_board_with_a_certificate_and_asks_for_nothing_without_tls(
    running: dict[str, RunningService], own: Certified
) -> None:
    origin, asked, said = running["router"].metrics.removesuffix("/metrics"), list[str](), list[str]()
    with chromium() as browser:
        shown = {"origin": origin, "certPath": own.cert, "keyPath": own.key}
        # Chromium has authorities of its own.
        context = browser.new_context(ignore_https_errors=True, client_certificates=[shown])  # type: ignore[list-item]
        page = context.new_page()
        page.on("request", lambda it: asked.append(it.url))
        page.on("console", lambda it: said.append(it.text))
        page.goto(f"{origin}/board")
        page.wait_for_selector("#state:text-is('live')")
    assert said == []
    assert len(asked) >= 4
    assert [it for it in asked if not it.startswith(f"{origin}/")] == []


def test_http_wants_a_certificate_of_who_calls(running: dict[str, RunningService], own: Certified) -> None:
    for service in running.values():
        with pytest.raises(OSError):  # noqa: PT011 - as above
            read(f"{service.http}/v2/health/ready", own.ca)
        assert read(f"{service.http}/v2/health/ready", own.ca, own) == '{"ready":true}'


def test_commands_call_with_tls(
    running: dict[str, RunningService], own: Certified, capsys: pytest.CaptureFixture[str]
) -> None:
    address, files = running["router"].address, ("--cert", str(own.cert), "--key", str(own.key))
    assert main(["call", "where is my card", "--address", address, "--ca", str(own.ca), *files]) == 0
    assert main(["describe", "--address", address, "--ca", str(own.ca), *files]) == 0
    assert "tiny-" in capsys.readouterr().out
    assert main(["describe", "--address", address]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "it may want TLS (`--tls`, `--ca`)" in line
    assert main(["describe", "--address", address, "--ca", "/absent.pem"]) == 2


def test_a_command_that_trusts_another_authority_says_so_in_one_line(
    running: dict[str, RunningService], tmp_path: Path
) -> None:
    """gRPC adds none of its own."""
    address, ca = running["router"].address, str(certified(tmp_path / "other").ca)
    command = [sys.executable, "-m", "realtime_service", "describe", "--address", address, "--ca", ca]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"realtime_service describe: UNAVAILABLE: the service at {address} has a certificate that is"
    )


@pytest.mark.parametrize("variable", ["TANDEM_GRPC_ADDRESS", "TANDEM_METRICS_ADDRESS"])
def test_an_address_of_other_hosts_is_refused_without_tls(variable: str, tmp_path: Path, own: Certified) -> None:
    line = serve_and_fail(tmp_path, tmp_path, **{variable: "0.0.0.0:0"})
    assert line.startswith(f"realtime_service serve: {variable}=0.0.0.0:0: other hosts reach this address")
    assert "--insecure" in line
    assert "TANDEM_INSECURE=yes" in line
    # Allowed by either, and with TLS, a start gets as far as the release, which is missing.
    for allowed in ({"TANDEM_INSECURE": "yes"}, own.environment()):
        assert "release" in serve_and_fail(tmp_path, tmp_path / "none", **{variable: "0.0.0.0:0"}, **allowed)


def test_a_wrong_certificate_ends_the_start_in_one_line(tmp_path: Path) -> None:
    mismatched = {**certified(tmp_path / "own").environment(), "TANDEM_TLS_KEY": str(certified(tmp_path / "b").key)}
    line = serve_and_fail(tmp_path, tmp_path, TANDEM_WORKERS="2", **mismatched)
    assert line.startswith(f"realtime_service serve: TANDEM_TLS_KEY={tmp_path}/b/localhost/key.pem: is not the key of ")

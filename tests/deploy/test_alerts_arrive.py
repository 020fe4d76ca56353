"""From a failed call to the webhook: a real service, Prometheus and Alertmanager as they are deployed."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.monitoring import DEPLOY, alertmanager, prometheus
from tests.integration.serving.fleet import Fleet, end, fleet, steady, wait_until_answered
from tests.load import load
from tests.realtime_service.conftest import eventually

pytestmark = pytest.mark.heavy

#: Seconds until an alert arrives: those of the route's `group_wait`, and a busy machine.
ARRIVES = 90.0


@pytest.fixture
def received() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a webhook, and the alerts that have arrived there."""
    alerts = list[dict[str, Any]]()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            alerts.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Requests are not logged."""

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/alerts?for=tandem&by=post", alerts
    server.shutdown()
    server.server_close()


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path / "fleet") as made:
        yield made


def test_when_every_call_fails_the_webhook_gets_the_alert(
    tmp_path: Path, ours: Fleet, received: tuple[str, list[dict[str, Any]]]
) -> None:
    webhook, alerts = received
    router, replica = ours.start(routers=1, replicas=1)

    def firing(name: str, **labels: str) -> list[dict[str, Any]]:
        wanted = {"alertname": name, **labels}.items()
        return [it for it in alerts if it["status"] == "firing" and wanted <= it["labels"].items()]

    with alertmanager(tmp_path, webhook) as manager, prometheus(tmp_path, manager, router, replica):
        wait_until_answered(router)
        assert load.run(steady(router.address, rate=20.0, seconds=2.0)).answered.all()
        assert not firing("GoodputLow")
        end(replica)

        def arrived() -> bool:
            calls = load.run(steady(router.address, rate=20.0, seconds=1.0, timeout_ms=200))
            assert not calls.answered.any()
            return bool(firing("GoodputLow", path="all") and firing("ReplicaDown"))

        eventually(arrived, seconds=ARRIVES)
    (alert, *_) = firing("GoodputLow", path="all")
    assert alert["labels"]["severity"] == "page"
    assert alert["annotations"]["runbook_url"] == "RUNBOOK.md#goodputlow"
    assert alert["annotations"]["summary"].endswith("of all requests are answered inside their deadline")


@pytest.mark.parametrize("address", ["", "ftp://elsewhere", 'http://a/"', "http://a b"])
def test_alertmanager_does_not_start_without_an_address_for_alerts(tmp_path: Path, address: str) -> None:
    own = {"ALERT_WEBHOOK_URL": address, "TANDEM_ALERTMANAGER_CONFIG": str(tmp_path / "alertmanager.yml")}
    command = ["/bin/sh", str(DEPLOY / "alertmanager" / "start.sh")]
    ran = subprocess.run(command, env={**os.environ, **own}, check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr.split(":")[0]) == (2, "ALERT_WEBHOOK_URL")

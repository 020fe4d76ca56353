"""Every query of the dashboards has an answer in a Prometheus that has scraped a real service."""

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from protos.scoring.v1.storage_pb2 import PublishedScore
from realtime_service.client import Client
from shared_model.published.epochs import Epoch
from shared_model.published.publish import publish
from shared_model.redis_store import keys
from shared_model.types import Priority
from tests.deploy.monitoring import DEPLOY, prometheus
from tests.integration.serving.fleet import fleet
from tests.realtime_service.conftest import eventually

pytestmark = pytest.mark.heavy

BOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))


def queries() -> dict[str, str]:
    """By board, panel and letter."""
    return {
        f"{path.stem} {panel['id']}{target['refId']}": target["expr"].replace("$__rate_interval", "1m")
        for path in BOARDS
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", [])
    }


@pytest.fixture(scope="module")
def scraping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that scrapes a replica with a night behind it, which answers on each of its lanes."""
    folder = tmp_path_factory.mktemp("dashboards")
    with fleet(folder / "fleet") as made:
        replica = made.replica(TANDEM_NIGHTLY_EXPECTED="true")
        figures = {"ds": "2026-01-14", "rows": 9, "rows_per_second": 2.5, "quarantined": 1, "finished_at": time.time()}
        with redis.Redis.from_url(made.redis.url) as client:
            client.set(keys.last_run(), json.dumps({**figures, "release": made.release}))
            client.set(keys.last_verdicts(), json.dumps({"ds": "2026-01-14", "outcomes": {"labels": "ok"}}))
            publish(client, Epoch(made.release, "bf16", "2026-01-14", 1), [(b"k" * 16, PublishedScore())])
        with prometheus(folder, "127.0.0.1:1", replica) as address, Client(replica.address) as caller:

            def all_have_an_answer() -> bool:
                for priority in (Priority.REAL_TIME, Priority.NORMAL, Priority.BATCH):
                    caller.score("where is my card", priority=priority)
                return not missing(address)

            try:
                eventually(all_have_an_answer, every=0.5)
            except AssertionError:
                pytest.fail(f"without an answer: {missing(address)}", pytrace=False)
            yield address


def missing(address: str) -> list[str]:
    return [name for name, expression in queries().items() if not asked(address, expression)]


def asked(address: str, expression: str) -> list[Any]:
    encoded = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"http://{address}/api/v1/query?{encoded}", timeout=10) as page:
        found: list[Any] = json.load(page)["data"]["result"]
    return found


@pytest.mark.parametrize("name", queries())
def test_a_query_has_an_answer(scraping: str, name: str) -> None:
    assert asked(scraping, queries()[name])


def test_control_a_metric_that_does_not_exist_has_no_answer(scraping: str) -> None:
    assert not asked(scraping, "sum(rate(tandem_requests_totals[1m]))")


def test_boards_ask_the_data_source_that_is_provisioned() -> None:
    (provisioned,) = (DEPLOY / "grafana" / "provisioning" / "datasources").glob("*.yml")
    asked_sources = {
        panel["datasource"]["uid"]
        for path in BOARDS
        for panel in json.loads(path.read_text())["panels"]
        if "targets" in panel
    }
    assert asked_sources == {"prometheus"}
    assert "uid: prometheus" in provisioned.read_text()

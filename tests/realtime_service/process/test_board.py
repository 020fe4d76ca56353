"""The SLA board of two real replicas on one Redis: either shows both, in JSON and, under traffic, in a browser."""

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from playwright.sync_api import Page

from realtime_service.__main__ import main
from realtime_service.client import Client
from shared_model.redis_store import keys
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.settings import StateSettings
from tests.browser import chromium
from tests.realtime_service.conftest import RunningService, eventually, start_service
from tests.realtime_service.rollout import tiny_releases

pytestmark = pytest.mark.heavy

REPOSITORY = Path(__file__).parents[3]
SHOTS = REPOSITORY / ".tandem" / "screenshots"
TEXT = "where is my card"
DAYS = ("2026-01-14", "2026-01-13")
SIZES = {"desktop": (1280, 1000), "phone": (390, 844)}


@pytest.fixture(scope="module")
def replicas(own_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningService]]:
    """Two with calls all the time, a deferred request that nothing answers, and two published nights."""
    store = Store(tmp_path_factory.mktemp("releases"))
    release = tiny_releases.seal(store, "tiny").id
    pointer.promote(store, None, release)
    state = StateSettings(state=tmp_path_factory.mktemp("board"))
    with RedisServer(state) as server:
        with redis.Redis.from_url(server.url) as client:
            for number, day in enumerate(reversed(DAYS)):
                told = {"ds": day, "rows": 1000 + number, "rows_per_second": 12.5, "quarantined": 3, "release": release}
                client.lpush(keys.recent_runs(), json.dumps({**told, "finished_at": time.time() - 3600}))
        own = {"REDIS_URL": server.url, "TANDEM_HARVEST": "no", "TANDEM_PRECOMPUTED": "no", "TANDEM_WORKERS": "1"}
        started = [start_service(state.state / str(it), Path(store.files.root), **own) for it in range(2)]
        with calls(started[0].address):
            yield started
        assert [it.stop() for it in started] == [0, 0]


class calls:  # noqa: N801 - reads as the function that it stands for
    """Calls of both service levels until the end."""

    def __init__(self, address: str) -> None:
        self._client = Client(address)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._client.submit("waits", TEXT, deliver_within_ms=3_600_000)
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for lane in ("latency", "throughput"):
                self._client.score(TEXT, lane=lane)


def figures(replica: RunningService) -> dict[str, Any]:
    with urllib.request.urlopen(replica.metrics.removesuffix("/metrics") + "/board.json", timeout=10) as answer:  # noqa: S310
        board: dict[str, Any] = json.loads(answer.read())["board"]
    return board


def settled(board: dict[str, Any]) -> bool:
    """Both replicas tell figures of all their lanes, and calls of the last seconds are in them and in the budget."""
    levels = board["lanes"][:2]
    return [it["replicas"] for it in board["lanes"]] == [2, 2, 2] and all(
        it["answers_per_second"] and it["p95_ms"] and it["budget"]["hour"]["counted"] and it["spare"] for it in levels
    )


@pytest.mark.parametrize("number", [0, 1])
def test_each_replica_shows_all(replicas: list[RunningService], number: int) -> None:
    eventually(lambda: settled(figures(replicas[number])))
    board = figures(replicas[number])
    assert board["redis"]
    assert not board["problem"]
    assert [it["state"] for it in board["replicas"]] == ["serving", "serving"]
    assert [(it["lane"], it["replicas"]) for it in board["lanes"]] == [
        ("throughput", 2),
        ("latency", 2),
        ("dynamic", 2),
    ]
    assert [(it["rate_target"], it["p95_target_ms"]) for it in board["lanes"][:2]] == [(1000, 500), (50, 50)]
    assert {it["path"] for it in board["paths"]} >= {"latency", "throughput"}
    assert sum(it["share"] for it in board["paths"]) == pytest.approx(1)
    assert [(it["model"], it["replicas"]) for it in board["models"]] == [("tiny", 2)]
    assert board["deferred"]["waiting"] == 1
    assert 3000 < board["deferred"]["due_in_seconds"] <= 3600
    assert [it["ds"] for it in board["nights"]] == list(DAYS)
    for it in board["lanes"][:2]:
        assert it["budget"]["days"]["counted"] >= it["budget"]["hour"]["counted"] > 0


def test_top_shows_all_from_one_address(replicas: list[RunningService], capsys: pytest.CaptureFixture[str]) -> None:
    eventually(lambda: settled(figures(replicas[0])))
    assert main(["top", "--metrics", replicas[0].metrics, "--frames", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("  serving  ") == 2
    assert "deferred: 1 wait, earliest deadline in 3" in shown
    assert f"{DAYS[0]}  default  published  1.0 h ago  1001" in shown


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_a_browser_shows_it_live_and_in_its_width(replicas: list[RunningService], size: str, scheme: str) -> None:
    eventually(lambda: settled(figures(replicas[0])))
    origin = replicas[0].metrics.removesuffix("/metrics")
    width, height = SIZES[size]
    with chromium() as browser:
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
        said, asked = list[str](), list[str]()
        page.on("console", lambda it: said.append(it.text))
        page.on("pageerror", lambda it: said.append(str(it)))
        page.on("request", lambda it: asked.append(it.url))
        page.goto(f"{origin}/board")
        page.wait_for_selector("#state:text-is('live')")
        check(page)
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SHOTS / f"board-{size}-{scheme}.png", full_page=size == "desktop")
    # A broken security policy would be said in the console.
    assert said == []
    assert [it for it in asked if not it.startswith((origin, "data:"))] == []


def check(page: Page) -> None:
    """That the figures stand on the page, that they change, and that nothing is wider than the screen."""
    assert [it.inner_text().lower() for it in page.locator("article h2").all()] == ["throughput", "latency", "dynamic"]
    for lane, rate, p95 in (("throughput", "1,000", "500"), ("latency", "50", "50")):
        card = page.locator(f"article[data-lane={lane}]").inner_text()
        assert f"target {rate} requests/s" in card
        assert f"target {p95} ms" in card
        assert card.count("% left") == 2
        assert "texts/s (" in card
    # A replica whose heartbeat a busy machine delays is gone until the next one.
    page.wait_for_function("document.querySelectorAll('#replicas tbody tr').length === 2")
    assert page.locator("#nights tbody tr").count() == len(DAYS)
    assert "tiny" in page.locator("#models").inner_text()
    assert "earliest deadline" in page.locator("#deferred").inner_text()
    before = page.locator("article[data-lane=latency]").inner_text()
    page.wait_for_function("before => document.querySelector('[data-lane=latency]').innerText !== before", arg=before)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

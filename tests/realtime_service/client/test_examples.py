"""The examples of clients in other languages and in a page, and look-ups by the Python client, on a real replica."""

import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import playwright
import pytest
from playwright.sync_api import Page

from realtime_service.client import Client, InvalidRequest, NotFound
from shared_model.redis_store.server import RedisServer
from shared_model.releases import pointer
from shared_model.releases.store import Store
from shared_model.settings import StateSettings
from tests.browser import chromium
from tests.conftest import REPOSITORY
from tests.realtime_service import night
from tests.realtime_service.client.faces import FACES, Face
from tests.realtime_service.conftest import RunningService, eventually, start_service
from tests.realtime_service.rollout import tiny_releases

pytestmark = pytest.mark.heavy

EXAMPLES = REPOSITORY / "realtime_service" / "examples"
#: Of the replica's answers to everything.
LABEL = tiny_releases.LABELS[0]
#: Runs TypeScript as it is.
NODE = Path(playwright.__file__).parent / "driver" / "node"


@pytest.fixture(scope="module")
def replica(own_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """With HTTP, a night of one message, and a model `side` without one."""
    folder = tmp_path_factory.mktemp("examples")
    store = Store(folder / "releases")
    release = tiny_releases.seal(store, "tiny").id
    pointer.promote(store, None, release)
    pointer.promote(store, None, tiny_releases.seal(store, "side").id, model="side")
    with RedisServer(StateSettings(state=folder)) as redis:
        night.publish(redis, release, {"message-1": bytes(16)})
        own = {"REDIS_URL": redis.url, "TANDEM_HTTP_ADDRESS": "127.0.0.1:0", "TANDEM_WORKERS": "1"}
        running = start_service(folder / "replica", folder / "releases", **own)
        with Client(running.address) as client:
            eventually(lambda: {it.name for it in client.describe().models if it.release} == {"tiny", "side"})
        yield running
        assert running.stop() == 0


@pytest.mark.parametrize("face", FACES, ids=["threads", "loop"])
def test_the_client_looks_last_nights_scores_up_by_id(face: Face, replica: RunningService) -> None:
    with face(replica.address) as client:
        found = client.lookup(["absent", "message-1"], top_k=1)
        nothing, score = found.results
        assert nothing is None
        assert score is not None
        assert [(it.name, round(it.score, 3)) for it in score.labels] == [(tiny_releases.LABELS[2], 0.75)]
        assert (found.ds, found.precision, found.model) == ("2026-01-14", "bf16", "tiny")
        assert found.release.startswith("tiny-")
        assert client.lookup("message-1").results[0]
        with pytest.raises(InvalidRequest, match="ids"):
            client.lookup([])
        with pytest.raises(InvalidRequest, match="model"):
            client.lookup(["message-1"], model="unknown")
        with pytest.raises(NotFound, match="no night"):
            client.lookup(["message-1"], model="side")


def curls() -> list[str]:
    page = (REPOSITORY / "realtime_service" / "README.md").read_text()
    return re.findall(r"^\$ (curl .*)$", page, re.MULTILINE)


def test_the_curl_commands_of_the_readme_answer(replica: RunningService) -> None:
    commands, said = curls(), ""
    for command in commands:
        shown = command.replace("http://127.0.0.1:8080", replica.http)
        assert shown != command
        ran = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True, timeout=30)
        said += ran.stdout
    assert len(commands) == 4
    assert f'"name":"{LABEL}"' in said
    assert re.search(r'event: result\ndata: .*"request_id":"ticket-4711"', said)
    assert '"ds":"2026-01-14"' in said


def run(program: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([NODE, program, *arguments], check=False, capture_output=True, text=True, timeout=60)


def printed(program: Path, *arguments: str) -> list[str]:
    """The lines of a TypeScript program."""
    ran = run(program, *arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_the_example_of_fetch_runs(replica: RunningService) -> None:
    best, *_, path, ended = printed(EXAMPLES / "fetch.ts", replica.http, "where is my card")
    assert re.fullmatch(rf"{LABEL} [01]\.\d\d\d", best)
    assert path == "path THROUGHPUT"
    assert re.fullmatch(r"example-\d+ PUBLISHED", ended)


def test_the_example_of_fetch_tells_a_refusal(replica: RunningService) -> None:
    ran = run(EXAMPLES / "fetch.ts", replica.http, "")
    assert ran.returncode == 1
    assert "INVALID_ARGUMENT: texts" in ran.stderr


@pytest.mark.proof
def test_the_example_of_grpc_js_runs_and_both_have_right_types(replica: RunningService, tmp_path: Path) -> None:
    """With packages of npm, which must be on PATH."""
    folder = tmp_path / "realtime_service" / "examples"
    shutil.copytree(EXAMPLES, folder)
    (tmp_path / "protos").symlink_to(REPOSITORY / "protos")
    subprocess.run(["npm", "install", "--no-audit", "--no-fund"], cwd=folder, check=True, timeout=200)
    subprocess.run(["npx", "tsc", "--project", "."], cwd=folder, check=True, timeout=200)
    best, *_, path, refused = printed(folder / "grpc.ts", replica.address, "where is my card")
    assert re.fullmatch(rf"{LABEL} [01]\.\d\d\d", best)
    assert path == "path THROUGHPUT"
    assert refused.startswith("INVALID_ARGUMENT: texts")


class Site(BaseHTTPRequestHandler):
    """A site's server: the page, and /v1 forwarded to `service`."""

    service = ""

    def do_GET(self) -> None:
        self._answer(200, "text/html", (EXAMPLES / "chat.html").read_bytes())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        asked = urllib.request.Request(self.service + self.path, body, {"content-type": "application/json"})  # noqa: S310
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:  # noqa: S310 - of this host
                self._answer(200, "application/json", answer.read())
        except urllib.error.HTTPError as error:
            self._answer(error.code, "application/json", error.read())

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def site(service: str) -> Iterator[str]:
    handler = type("Forwarding", (Site,), {"service": service})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def says(page: Page, text: str) -> str:
    """The widget's reply."""
    replies = page.locator("li.bot")
    before = replies.count()
    page.get_by_label("Your message").fill(text)
    page.get_by_role("button", name="Send").click()
    replies.nth(before).wait_for(timeout=10_000)
    return replies.nth(before).inner_text()


def test_the_chat_widget_answers_in_a_browser(replica: RunningService) -> None:
    with site(replica.http) as address, chromium() as browser:
        page = browser.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address)
        assert says(page, "where is my card") == f"This is about {LABEL}."
        # Typed text stays text.
        assert says(page, "<img src=x onerror=alert(1)>") == f"This is about {LABEL}."
        assert page.locator("li.you").nth(1).inner_text() == "<img src=x onerror=alert(1)>"
        assert page.locator("#said img").count() == 0
        # A refusal is shown: the service takes texts of 64 KB.
        page.get_by_label("Your message").evaluate("box => box.removeAttribute('maxlength')")
        assert says(page, "card" * 20_000) == "Sorry, not now (INVALID_ARGUMENT)."
        assert problems == []

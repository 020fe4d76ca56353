"""Where calls need a token, the SLA board needs one, too: an operator's, in a browser and for `top`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from realtime_service.__main__ import main
from shared_model.releases import pointer
from shared_model.releases.store import Store
from tests.browser import chromium
from tests.certified import Certified, certified, scraped
from tests.realtime_service.conftest import RunningService, start_service
from tests.realtime_service.rollout import tiny_releases
from tests.realtime_service.tokens import key_file, token

pytestmark = pytest.mark.heavy


@dataclass(frozen=True)
class Guarded:
    service: RunningService
    own: Certified
    tokens: Path

    def top(self, bearer: str) -> int:
        self.tokens.write_text(bearer)
        given = ["--token-file", str(self.tokens)] if bearer else []
        address = self.service.metrics.split("/")[2]
        return main(["top", "--metrics", address, "--ca", str(self.own.ca), "--frames", "1", *given])


@pytest.fixture(scope="module")
def guarded(own_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    store, own = Store(folder / "releases"), certified(folder)
    pointer.promote(store, None, tiny_releases.seal(store, "tiny").id)
    settings = {"TANDEM_AUTH": "required", "TANDEM_TOKEN_KEYS": str(key_file(folder)), "TANDEM_HARVEST": "no"}
    settings |= {"TANDEM_PRECOMPUTED": "no", "TANDEM_LANES": "latency"}
    service = start_service(folder / "state", Path(store.files.root), **settings, **own.environment())
    yield Guarded(service, own, folder / "token")
    assert service.stop() == 0


def operator() -> str:
    return token(sub="ops", roles=["operator"])


def test_top_needs_the_token_of_an_operator(guarded: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded.top("") == 2
    assert "(401: a call needs a bearer token" in capsys.readouterr().err
    assert guarded.top(token(sub="bot")) == 2
    assert "(403: the SLA board is for operators: the token needs the role `operator`)" in capsys.readouterr().err
    assert guarded.top(operator()) == 0
    assert "tiny-" in capsys.readouterr().out
    # Prometheus reads as ever.
    assert "tandem_requests_total" in scraped(guarded.service.metrics.removesuffix("/metrics"), guarded.own.ca)


def test_the_page_asks_for_a_token_and_keeps_it_for_its_tab(guarded: Guarded) -> None:
    board = f"{guarded.service.metrics.removesuffix('/metrics')}/board"
    with chromium() as browser:
        page = browser.new_page(ignore_https_errors=True)
        page.goto(board)
        form = page.locator("#token")
        form.wait_for(state="visible")
        assert "a call needs a bearer token" in form.inner_text()
        assert page.locator("article").count() == 0
        page.fill("#bearer", token(sub="bot"))
        page.click("#token button")
        page.locator("#token", has_text="the token needs the role `operator`").wait_for(state="visible")
        page.fill("#bearer", operator())
        page.click("#token button")
        page.wait_for_selector("#state:text-is('live')")
        assert form.is_hidden()
        page.reload()
        page.wait_for_selector("#state:text-is('live')")
        other = browser.new_page(ignore_https_errors=True)
        other.goto(board)
        other.locator("#token").wait_for(state="visible")


def test_a_page_without_storage_keeps_the_token_by_itself(guarded: Guarded) -> None:
    """As some browsers have it for a framed page."""
    with chromium() as browser:
        page = browser.new_page(ignore_https_errors=True)
        page.add_init_script("Object.defineProperty(window, 'sessionStorage', {get() { throw new Error('blocked'); }})")
        page.goto(f"{guarded.service.metrics.removesuffix('/metrics')}/board")
        page.locator("#token").wait_for(state="visible")
        page.fill("#bearer", operator())
        page.click("#token button")
        page.wait_for_selector("#state:text-is('live')")

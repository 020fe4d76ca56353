"""The board's pages: strict headers, who may frame them, and what is answered while the service does not."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, make_wsgi_app

from realtime_service.errors import PermissionDenied, Unauthenticated
from realtime_service.settings import ServiceSettings
from realtime_service.transport.board_pages import BoardPages
from shared_model import settings
from shared_model.errors import SettingError, StoreUnavailable


def figures(authorization: str) -> bytes:
    return b'{"board": 1}'


def late(authorization: str) -> bytes:
    raise StoreUnavailable("the service has not answered within 4 s")


def ask(pages: BoardPages, path: str, method: str = "GET", **more: str) -> tuple[str, dict[str, str], bytes]:
    told: list[Any] = []
    environ = {"PATH_INFO": path, "REQUEST_METHOD": method, **more}
    body = b"".join(pages(environ, lambda *it: told.extend(it)))  # type: ignore[arg-type]
    return told[0], dict(told[1]), body


def pages(frames: str = "", answer: Any = figures) -> BoardPages:
    return BoardPages(make_wsgi_app(CollectorRegistry()), answer, frames)


@pytest.mark.parametrize(
    ("path", "media"),
    [
        ("/board", "text/html"),
        ("/board.css", "text/css"),
        ("/board.js", "text/javascript"),
        ("/board.json", "application/json"),
    ],
)
def test_each_page_has_its_type_and_strict_headers(path: str, media: str) -> None:
    status, headers, body = ask(pages(), path)
    assert status == "200 OK"
    assert headers["Content-Type"].startswith(media)
    policy = headers["Content-Security-Policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    assert b"http://" not in body
    assert b"https://" not in body


def test_named_origins_may_frame_it() -> None:
    policy = ask(pages("https://a.example http://b.example:8080"), "/board")[1]["Content-Security-Policy"]
    assert policy.endswith("; frame-ancestors https://a.example http://b.example:8080")


@pytest.mark.parametrize("value", ["*", "https://a.example; script-src *", "a.example", "https://a.example/page"])
def test_what_is_no_origin_is_refused(value: str) -> None:
    with pytest.raises(SettingError, match="TANDEM_BOARD_FRAMES"):
        settings.load(ServiceSettings, {"TANDEM_BOARD_FRAMES": value})


def test_other_paths_and_methods_are_not_the_boards() -> None:
    assert ask(pages(), "/board.json", "POST")[0] == "405 Method Not Allowed"
    assert "Content-Security-Policy" not in ask(pages(), "/metrics")[1]


def test_a_service_that_hangs_is_503_with_the_reason() -> None:
    status, _, body = ask(pages(answer=late), "/board.json")
    assert (status, body) == ("503 Service Unavailable", b"the service has not answered within 4 s")


def for_one_token(authorization: str) -> bytes:
    if not authorization:
        raise Unauthenticated("a token is needed")
    if authorization != "Bearer right":
        raise PermissionDenied("another one's")
    return b"{}"


def test_figures_need_the_permission_that_their_reader_shows_and_the_page_holds_none() -> None:
    guarded = pages(answer=for_one_token)
    status, headers, body = ask(guarded, "/board.json")
    assert (status, headers["WWW-Authenticate"], body) == ("401 Unauthorized", "Bearer", b"a token is needed")
    assert ask(guarded, "/board.json", HTTP_AUTHORIZATION="Bearer wrong")[0] == "403 Forbidden"
    assert ask(guarded, "/board.json", HTTP_AUTHORIZATION="Bearer right")[0] == "200 OK"
    assert ask(guarded, "/board")[0] == "200 OK"

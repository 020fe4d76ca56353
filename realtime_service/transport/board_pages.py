"""The pages of the SLA board beside the metrics: one page, its style and script, and the figures that it asks for.

The page itself holds nothing of the service. It asks for a token where the figures need one.
"""

from collections.abc import Callable, Iterable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from realtime_service.errors import PermissionDenied, Unauthenticated
from shared_model.errors import StoreUnavailable, TandemError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication

_STATUSES: dict[type[TandemError], HTTPStatus] = {
    StoreUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    Unauthenticated: HTTPStatus.UNAUTHORIZED,
    PermissionDenied: HTTPStatus.FORBIDDEN,
}
_FOLDER = Path(__file__).parent / "board"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
#: Nothing from elsewhere, and no inline script or style: an injected one would not run.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors {}"
)


class BoardPages:
    """A WSGI application that answers for the board, and asks `metrics` for every other path. `figures`: those of now,
    as JSON, for a caller with this header `Authorization`; raises an error of _STATUSES. `frames`: origins of pages
    that may frame the board, by space."""

    def __init__(self, metrics: "WSGIApplication", figures: Callable[[str], bytes], frames: str = "") -> None:
        self._metrics = metrics
        self._figures = figures
        self._headers = [
            ("Content-Security-Policy", _POLICY.format(frames or "'none'")),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ]
        files = {path.suffix[1:]: path.read_bytes() for path in _FOLDER.iterdir()}
        self._pages = {
            "/board" if kind == "html" else f"/board.{kind}": (f"{media}; charset=utf-8", files[kind])
            for kind, media in _TYPES.items()
        }

    def __call__(self, environ: dict[str, Any], start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path != "/board.json" and path not in self._pages:
            return self._metrics(environ, start_response)
        if environ["REQUEST_METHOD"] != "GET":
            return self._answer(start_response, HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"GET alone is answered")
        if path in self._pages:
            return self._answer(start_response, HTTPStatus.OK, *self._pages[path])
        try:
            figures = self._figures(environ.get("HTTP_AUTHORIZATION", ""))
        except tuple(_STATUSES) as error:
            return self._answer(start_response, _STATUSES[type(error)], "text/plain", str(error).encode())
        return self._answer(start_response, HTTPStatus.OK, "application/json", figures)

    def _answer(self, start: "StartResponse", status: HTTPStatus, media: str, body: bytes) -> list[bytes]:
        # As a 401 must; no browser asks for a bearer token by itself.
        scheme = [("WWW-Authenticate", "Bearer")] if status is HTTPStatus.UNAUTHORIZED else []
        start(f"{status} {status.phrase}", [("Content-Type", media), *scheme, *self._headers])
        return [body]

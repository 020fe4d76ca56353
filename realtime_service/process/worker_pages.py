"""The metrics of all workers of a service as one page, and the SLA board of any of them: a WSGI application."""

import contextlib
import http.client
import socket
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from prometheus_client.exposition import choose_encoder

from realtime_service.telemetry.metrics.workers import WorkerMetrics

if TYPE_CHECKING:
    from wsgiref.types import StartResponse

#: Seconds that a worker has for its answer. Less than a scrape has: one that hangs does not hide the others.
_ANSWER_SECONDS = 2.0
_BOARD = "/board"
_END = "# EOF"
#: Headers of an answer that the server here writes itself.
_OF_THE_CONNECTION = ("date", "server", "content-length")


@dataclass(frozen=True)
class Page:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class WorkerPages:
    """`sockets`: the file on which each worker answers; `metrics`: the supervisor's own. Threads call it."""

    def __init__(self, sockets: Sequence[str], metrics: WorkerMetrics) -> None:
        self._sockets = sockets
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(len(sockets), "metrics")

    def __call__(self, environ: dict[str, Any], start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        page = self._any(environ) if path.startswith(_BOARD) else self._all(environ)
        status = HTTPStatus(page.status)
        start_response(f"{status} {status.phrase}", page.headers)
        return [page.body]

    def _any(self, environ: dict[str, Any]) -> Page:
        """The page of the first worker that answers: each shows all replicas."""
        for file in self._sockets:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return _ask(file, environ, path=environ["PATH_INFO"])
        text = b"no worker of this service answers"
        return Page(HTTPStatus.SERVICE_UNAVAILABLE, [("Content-Type", "text/plain")], text)

    def _all(self, environ: dict[str, Any]) -> Page:
        found = dict(enumerate(self._threads.map(lambda file: _metrics(file, environ), self._sockets)))
        for index, page in found.items():
            self._metrics.set_up(index, page is not None)
        encode, media = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        # One worker needs no label: its series are those of the replica.
        named = {str(index) if len(found) > 1 else "": page for index, page in found.items() if page is not None}
        body = merged([("", encode(self._metrics.registry).decode()), *named.items()])
        return Page(HTTPStatus.OK, [("Content-Type", media)], body.encode())


def merged(pages: Iterable[tuple[str, str]]) -> str:
    """One page of several in Prometheus' text format or OpenMetrics, each with the label `worker` that its samples get;
    empty for no label. The samples of a family stay together, as both formats want it."""
    described, samples, ended = dict[str, list[str]](), dict[str, list[str]](), False
    for worker, page in pages:
        family, seen = "", set(described)
        for line in page.splitlines():
            if line == _END:
                ended = True
            elif line.startswith("#"):
                family = line.split(" ", 3)[2]
                samples.setdefault(family, [])
                if family not in seen:
                    described.setdefault(family, []).append(line)
            elif line:
                samples[family].append(_labelled(line, worker) if worker else line)
    lines = (line for family, heads in described.items() for line in (*heads, *samples[family]))
    return "".join(f"{line}\n" for line in (*lines, *[_END] * ended))


def _labelled(sample: str, worker: str) -> str:
    """A name holds neither a brace nor a space; the text of labels and exemplars may."""
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{worker="{worker}",{rest}'
    name, _, rest = sample.partition(" ")
    return f'{name}{{worker="{worker}"}} {rest}'


def _metrics(file: str, environ: Mapping[str, Any]) -> str | None:
    """The metrics of a worker; None where it gives none."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        page = _ask(file, {**environ, "REQUEST_METHOD": "GET"}, path="/metrics")
        return page.body.decode() if page.status == HTTPStatus.OK else None
    return None


def _ask(file: str, environ: Mapping[str, Any], path: str) -> Page:
    """Raises: OSError, HTTPException."""
    query = urllib.parse.quote(environ.get("QUERY_STRING", ""), safe="%=&[]")
    given = {"Accept": environ.get("HTTP_ACCEPT", ""), "Authorization": environ.get("HTTP_AUTHORIZATION", "")}
    # No header goes on that could be read as two.
    headers = {name: it for name, it in given.items() if it and it.isascii() and it.isprintable()}
    connection = http.client.HTTPConnection("localhost", timeout=_ANSWER_SECONDS)
    with contextlib.closing(connection), socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(_ANSWER_SECONDS)
        connected.connect(file)
        connection.sock = connected
        connection.request(environ["REQUEST_METHOD"], f"{path}?{query}" if query else path, headers=headers)
        answer = connection.getresponse()
        kept = [it for it in answer.getheaders() if it[0].lower() not in _OF_THE_CONNECTION]
        return Page(answer.status, kept, answer.read())

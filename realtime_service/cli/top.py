"""`top`: the SLA board in a terminal. It asks replicas for their figures, as the page does."""

import contextlib
import http.client
import itertools
import json
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from realtime_service.telemetry.metrics import service_levels
from realtime_service.telemetry.metrics.service_levels import ReplicaFigures, Shared
from shared_model.addresses import is_loopback
from shared_model.errors import BadInput

#: Seconds that a replica has for its answer.
_TIMEOUT_SECONDS = 5.0
#: To the top left, and the rest of the screen is cleared.
_HOME = "\033[H\033[J"
_PAGE = "/board.json"

Row = tuple[str, ...]


@dataclass(frozen=True)
class Reader:
    """How replicas are asked. `tls`: None for plain HTTP, but for addresses that are URLs of HTTPS; `name`: the name in
    their certificates, empty for the host that is asked; `token`: the caller's, read before each question;
    `insecure`: it may travel to other hosts in clear."""

    tls: ssl.SSLContext | None = None
    name: str = ""
    token: Callable[[], str] | None = None
    insecure: bool = False


def watch(addresses: Sequence[str], reader: Reader, seconds: float, frames: int, say: Callable[[str], None]) -> None:
    """Print so many frames, one every few `seconds`; 0: until interrupted. A frame says so where none answers any more.
    Raises: BadInput if no replica answers at first."""
    with contextlib.suppress(KeyboardInterrupt):
        for number in range(frames) if frames else itertools.count():
            if number:
                time.sleep(seconds)
            try:
                shown = frame(*read(addresses, reader))
            except BadInput as gone:
                if not number:
                    raise
                shown = str(gone)
            say(shown if frames else f"{_HOME}{shown}")


def read(addresses: Sequence[str], reader: Reader) -> tuple[dict[str, Any], list[str]]:
    """The board of all replicas that these know of, and those of these without an answer, each with the reason: one
    address is enough where replicas share a Redis. Raises: BadInput if none answers."""
    replicas, shared, silent = dict[str, ReplicaFigures](), list[Shared](), list[str]()
    for address in addresses:
        try:
            told = _ask(address, reader)
            replicas |= {it["replica"]: ReplicaFigures.of(it) for it in told["replicas"]}
            shared.append(Shared(**told["shared"]))
        except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError) as error:
            silent.append(f"{address} ({error})")
    if not shared:
        raise BadInput("--metrics", f"no answer from {', '.join(silent)}; replicas print their address when ready")
    # One that has reached Redis knows more.
    best = max(shared, key=lambda it: it.redis)
    return service_levels.board([replicas[it] for it in sorted(replicas)], best), silent


def _ask(address: str, reader: Reader) -> Any:
    """Raises: OSError, HTTPException and ValueError, whose texts say why there is no answer."""
    connection, path = _connected(address, reader)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {reader.token()}"} if reader.token else {})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != http.client.OK:
            raise ValueError(f"{answer.status}: {body[:200].decode(errors='replace')}")
        return json.loads(body)


def _connected(address: str, reader: Reader) -> tuple[http.client.HTTPConnection, str]:
    """A connection that is open, and the path of the figures. Raises: OSError, ValueError."""
    url = urllib.parse.urlsplit(address if "://" in address else f"{'https' if reader.tls else 'http'}://{address}")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise BadInput("--metrics", f"{address!r} is no address of metrics, HOST:PORT or a URL")
    if reader.token and url.scheme == "http" and not (reader.insecure or is_loopback(url.hostname)):
        raise BadInput("--token-file", f"the token would travel to {address} in clear: use TLS, or --insecure")
    # The URL of the metrics, as replicas print it, will do.
    path = f"{url.path.rstrip('/').removesuffix('/metrics').removesuffix(_PAGE)}{_PAGE}"
    port = url.port or (443 if url.scheme == "https" else 80)
    connection = http.client.HTTPConnection(url.hostname, port, timeout=_TIMEOUT_SECONDS)
    connection.sock = socket.create_connection((url.hostname, port), _TIMEOUT_SECONDS)
    if url.scheme == "https":
        context = reader.tls or ssl.create_default_context()
        connection.sock = context.wrap_socket(connection.sock, server_hostname=reader.name or url.hostname)
    return connection, path


def frame(board: dict[str, Any], silent: Sequence[str] = ()) -> str:
    """A board as tables; pure."""
    # As on the page: a lane that is no service level is shown where a replica has it.
    lanes = [it for it in board["lanes"] if it["lane"] in service_levels.LEVELS or it["replicas"]]
    columns = [dict(_lane(it)) for it in lanes]
    levels = [["", *(it["lane"] for it in lanes)], *([name, *(it[name] for it in columns)] for name in columns[0])]
    rows = (f"{name:<24}{''.join(f'{cell:>18}' for cell in cells)}" for name, *cells in levels)
    return "\n".join([*rows, "", *_whole(board, silent)])


def _lane(lane: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "answers a second", f"{lane['answers_per_second']:.1f}"
    yield "  target", _or_dash(lane["rate_target"], "{:.0f}")
    yield "p95", _or_dash(lane["p95_ms"], "{:.1f} ms")
    yield "  target of p95", _or_dash(lane["p95_target_ms"], "{:.0f} ms")
    yield "in time", _or_dash(lane["in_time"], "{:.1%}")
    yield "refused a second", f"{lane['refused_per_second']:.1f}"
    yield "waiting", f"{lane['waiting']:.0f}"
    yield "load, highest", _or_dash(lane["load"], "{:.0%}")
    yield "spare texts a second", _or_dash(lane["spare_texts_per_second"], "{:.0f}")
    yield "  of capacity", _or_dash(lane["spare"], "{:.0%}")
    for window, named in (("hour", "1 hour"), ("days", "28 days")):
        budget = lane["budget"].get(window, {"left": None, "missed": 0, "counted": 0})
        yield f"budget left, {named}", _or_dash(budget["left"], "{:.1%}")
        yield f"  missed in {named}", "{missed:.0f} of {counted:.0f}".format(**budget)


def _whole(board: dict[str, Any], silent: Sequence[str]) -> Iterator[str]:
    paths = ("{path} {share:.0%} ({per_second:.1f}/s)".format(**it) for it in board["paths"])
    yield "paths: " + (", ".join(paths) or "–")
    yield f"Redis: {'reached' if board['redis'] else 'not reached'}"
    if waits := board["deferred"]:
        due = _or_dash(waits["due_in_seconds"], "in {:.0f} s")
        yield f"deferred: {waits['waiting']:.0f} wait, earliest deadline {due}"
    yield from _table(("model", "release", "canary", "replicas"), map(_model, board["models"]))
    headings = ("night", "model", "status", "ended", "rows", "rows/s", "quarantined", "release")
    yield from _table(headings, (_night(it, board["at"]) for it in board["nights"]))
    headings = ("replica", "address", "status", "lanes", "load", "waiting", "answers/s", "unfit releases")
    yield from _table(headings, map(_replica, board["replicas"]))
    if board["problem"]:
        yield board["problem"]
    if silent:
        yield f"no answer: {', '.join(silent)}"


def _model(it: dict[str, Any]) -> Row:
    canary = "{canary} ({weight:.0%})".format(**it) if it["canary"] else "–"
    return it["model"], it["release"], canary, f"{it['replicas']}"


def _night(it: dict[str, Any], now: float) -> Row:
    ended = f"{(now - it['finished_at']) / 3600:.1f} h ago"
    figures = f"{it['rows']}", f"{it['rows_per_second']:.0f}", f"{it['quarantined']}"
    return it["ds"], it["model"] or "default", it["state"], ended, *figures, it["release"]


def _replica(it: dict[str, Any]) -> Row:
    if "load" not in it:
        return it["replica"], "–", it["state"], *("–",) * 5
    work = f"{it['load']:.0%}", f"{it['waiting']:.0f}", f"{it['answers_per_second']:.1f}"
    named = ", ".join(it["lanes"]) or "none", *work, ", ".join(it["failed_releases"]) or "–"
    return it["replica"], it["address"], it["state"], *named


def _table(headings: Row, rows: Iterable[Row]) -> Iterator[str]:
    """Nothing without rows."""
    table = [headings, *rows]
    if len(table) > 1:
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        yield ""
        yield from ("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)

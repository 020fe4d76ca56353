"""`top`: the SLA board in a terminal. It asks replicas for their figures, as the page does."""

import contextlib
import itertools
import json
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from realtime_service.telemetry.metrics import service_levels
from realtime_service.telemetry.metrics.service_levels import ReplicaFigures, Shared
from shared_model.errors import BadInput

#: Seconds that a replica has for its answer.
_TIMEOUT_SECONDS = 5.0
#: To the top left, and the rest of the screen is cleared.
_HOME = "\033[H\033[J"


def watch(addresses: Sequence[str], ca: Path | None, seconds: float, frames: int, say: Callable[[str], None]) -> None:
    """Print so many frames, one every few `seconds`; 0: until interrupted. A frame says so where none answers any more.
    Raises: BadInput if no replica answers at first."""
    context = ssl.create_default_context(cafile=ca) if ca else None
    with contextlib.suppress(KeyboardInterrupt):
        for number in range(frames) if frames else itertools.count():
            if number:
                time.sleep(seconds)
            try:
                shown = frame(*read(addresses, context))
            except BadInput as gone:
                if not number:
                    raise
                shown = str(gone)
            say(shown if frames else f"{_HOME}{shown}")


def read(addresses: Sequence[str], context: ssl.SSLContext | None) -> tuple[dict[str, Any], list[str]]:
    """The board of all replicas that these know of, and those of these without an answer: one address is enough where
    replicas share a Redis. Raises: BadInput if none answers."""
    replicas, shared, silent = dict[str, ReplicaFigures](), list[Shared](), list[str]()
    for address in addresses:
        try:
            told = _ask(address, context)
            replicas |= {it["replica"]: ReplicaFigures.of(it) for it in told["replicas"]}
            shared.append(Shared(**told["shared"]))
        except (OSError, ValueError, TypeError, KeyError):
            silent.append(address)
    if not shared:
        raise BadInput("--metrics", f"{', '.join(addresses)} does not answer; replicas print their address when ready")
    # One that has reached Redis knows more.
    best = max(shared, key=lambda it: it.redis)
    return service_levels.board([replicas[it] for it in sorted(replicas)], best), silent


def _ask(address: str, context: ssl.SSLContext | None) -> Any:
    url = address if "://" in address else f"{'https' if context else 'http'}://{address}/board.json"
    if not url.startswith(("http://", "https://")):
        raise BadInput("--metrics", f"{address!r} is no address of metrics, HOST:PORT or a URL")
    # The URL of the metrics, as replicas print it, will do.
    url = f"{url.removesuffix('/metrics').removesuffix('/board.json')}/board.json"
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS, context=context) as page:  # noqa: S310 - checked
        return json.loads(page.read())


def frame(board: dict[str, Any], silent: Sequence[str] = ()) -> str:
    """A board as a table; pure."""
    lanes = {it["lane"]: it for it in board["lanes"]}
    columns = [list(_lane(lanes[it])) for it in service_levels.LEVELS]
    rows = [
        ("", *service_levels.LEVELS),
        *((name, one, other) for (name, one), (_, other) in zip(*columns, strict=True)),
    ]
    return "\n".join([*(f"{name:<24}{one:>18}{other:>18}" for name, one, other in rows), "", *_whole(board, silent)])


def _lane(lane: dict[str, Any]) -> Iterator[tuple[str, str]]:
    budget = {name: it["left"] for name, it in lane["budget"].items()}
    yield "answers a second", f"{lane['answers_per_second']:.1f}"
    yield "  target", _or_dash(lane["rate_target"], "{:.0f}")
    yield "p95", _or_dash(lane["p95_ms"], "{:.1f} ms")
    yield "  target", _or_dash(lane["p95_target_ms"], "{:.0f} ms")
    yield "in time", _or_dash(lane["in_time"], "{:.1%}")
    yield "refused a second", f"{lane['refused_per_second']:.1f}"
    yield "waiting", f"{lane['waiting']:.0f}"
    yield "load, highest", _or_dash(lane["load"], "{:.0%}")
    yield "spare texts a second", _or_dash(lane["spare_texts_per_second"], "{:.0f}")
    yield "budget left, 1 hour", _or_dash(budget.get("hour"), "{:.1%}")
    yield "budget left, 28 days", _or_dash(budget.get("days"), "{:.1%}")


def _whole(board: dict[str, Any], silent: Sequence[str]) -> Iterator[str]:
    yield "paths: " + (", ".join("{path} {share:.0%}".format(**it) for it in board["paths"]) or "–")
    for it in board["models"]:
        canary = ", canary {canary} for {weight:.0%}".format(**it) if it["canary"] else ""
        yield f"model {it['model']}: {it['release']}{canary}, on {it['replicas']} replicas"
    for it in board["replicas"]:
        yield f"replica {it['replica']}: {it['state']}" + (f", load {it['load']:.0%}" if "load" in it else "")
    yield f"Redis: {'reached' if board['redis'] else 'not reached'}"
    if waits := board["deferred"]:
        due = _or_dash(waits["due_in_seconds"], "in {:.0f} s")
        yield f"deferred: {waits['waiting']:.0f} wait, earliest deadline {due}"
    nights = board["nights"]
    ago = f"{nights[0]['ds']}, published {(board['at'] - nights[0]['finished_at']) / 3600:.1f} h ago" if nights else "–"
    yield f"last night: {ago}"
    if board["problem"]:
        yield board["problem"]
    if silent:
        yield f"no answer: {', '.join(silent)}"


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)

"""`top`: both service levels side by side in a terminal, from the metrics of replicas."""

import contextlib
import itertools
import math
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from shared_model.errors import BadInput

#: Seconds that a replica has for its metrics.
_TIMEOUT_SECONDS = 2.0
_LANES = ("latency", "throughput")
_MISSED = ("late", "refused", "expired", "failed")
#: To the top left, and the rest of the screen is cleared.
_HOME = "\033[H\033[J"

Labels = frozenset[tuple[str, str]]


@dataclass
class Reading:
    """The metrics of all replicas. `at`: seconds; `samples`: by name; `silent`: addresses without an answer."""

    at: float
    samples: dict[str, list[tuple[Labels, float]]] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Add what a replica has exported."""
        for family in text_string_to_metric_families(text):
            for it in family.samples:
                self.samples.setdefault(it.name, []).append((frozenset(it.labels.items()), it.value))

    def of(self, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """The samples that have these labels."""
        wanted = labels.items()
        return ((dict(found), value) for found, value in self.samples.get(name, ()) if wanted <= found)

    def sum(self, name: str, **labels: str) -> float:
        return math.fsum(value for _, value in self.of(name, **labels))

    def most(self, name: str, **labels: str) -> float:
        return max((value for _, value in self.of(name, **labels)), default=0.0)


def watch(addresses: Sequence[str], ca: Path | None, seconds: float, frames: int, say: Callable[[str], None]) -> None:
    """Print so many frames, one every few `seconds`; 0: until interrupted. Raises: BadInput if no replica answers."""
    context = ssl.create_default_context(cafile=ca) if ca else None
    before = read(addresses, context)
    with contextlib.suppress(KeyboardInterrupt):
        for _ in range(frames) if frames else itertools.count():
            time.sleep(seconds)
            now = read(addresses, context)
            say(frame(before, now) if frames else f"{_HOME}{frame(before, now)}")
            before = now


def read(addresses: Sequence[str], context: ssl.SSLContext | None) -> Reading:
    """Raises: BadInput if no replica answers."""
    reading = Reading(time.time())
    for address in addresses:
        url = address if "://" in address else f"{'https' if context else 'http'}://{address}/metrics"
        if not url.startswith(("http://", "https://")):
            raise BadInput("--metrics", f"{address!r} is no address of metrics, HOST:PORT or a URL")
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS, context=context) as page:  # noqa: S310 - checked
                reading.add(page.read().decode())
        except (OSError, ValueError):
            reading.silent.append(address)
    if len(reading.silent) == len(addresses):
        raise BadInput("--metrics", f"{', '.join(addresses)} does not answer; replicas print their address when ready")
    return reading


def frame(before: Reading, now: Reading) -> str:
    """The changes between two readings, as a table; pure."""
    latency, throughput = (list(_lane(before, now, lane)) for lane in _LANES)
    rows = [("", *_LANES), *((name, one, other) for (name, one), (_, other) in zip(latency, throughput, strict=True))]
    return "\n".join([*(f"{name:<24}{one:>18}{other:>18}" for name, one, other in rows), "", *_whole(now)])


def _lane(before: Reading, now: Reading, lane: str) -> Iterator[tuple[str, str]]:
    def grown(outcome: str) -> float:
        name = "tandem_requests_total"
        return max(0.0, now.sum(name, path=lane, outcome=outcome) - before.sum(name, path=lane, outcome=outcome))

    seconds, met, late = max(1e-9, now.at - before.at), grown("met"), grown("late")
    ended = met + sum(map(grown, _MISSED))
    p95 = quantile(0.95, _buckets(before, now, lane))
    yield "answers a second", f"{(met + late) / seconds:.1f}"
    yield "  target", _or_dash(now.most("tandem_lane_target_requests_per_second", path=lane), "{:.0f}")
    yield "p95", _or_dash(1000 * p95, "{:.1f} ms")
    yield "  target", _or_dash(1000 * now.most("tandem_lane_target_seconds", path=lane), "{:.0f} ms")
    yield "in time", _or_dash(100 * met / ended if ended else math.nan, "{:.1f} %")
    yield "refused a second", f"{grown('refused') / seconds:.1f}"
    yield "waiting", f"{now.sum('tandem_waiting', path=lane):.0f}"
    yield "load, highest", _or_dash(100 * now.most("tandem_load", path=lane), "{:.0f} %")


def quantile(share: float, buckets: Sequence[tuple[float, float]]) -> float:
    """As Prometheus' histogram_quantile; nan without samples. `buckets`: upper edges and cumulative counts."""
    total = buckets[-1][1] if buckets else 0.0
    if not total:
        return math.nan
    low, below = 0.0, 0.0
    for edge, count in buckets:
        if count >= share * total:
            return low if math.isinf(edge) else low + (edge - low) * (share * total - below) / (count - below)
        low, below = edge, count
    return low


def _buckets(before: Reading, now: Reading, lane: str) -> list[tuple[float, float]]:
    name = "tandem_request_seconds_bucket"
    edges = sorted({labels["le"] for labels, _ in now.of(name, path=lane)}, key=float)
    grown = [(float(it), now.sum(name, path=lane, le=it) - before.sum(name, path=lane, le=it)) for it in edges]
    return [(edge, max(0.0, count)) for edge, count in grown]


def _whole(now: Reading) -> Iterator[str]:
    releases = sorted({labels["release"] for labels, _ in now.of("tandem_release_info")})
    yield f"releases: {', '.join(releases) or '–'}"
    yield f"Redis: {'reached' if now.most('tandem_redis_up') else 'not reached'}"
    published = now.most("tandem_nightly_last_success_timestamp_seconds")
    days = sorted(labels["ds"] for labels, _ in now.of("tandem_nightly_rows"))
    yield f"last night: {days[-1]}, published {(now.at - published) / 3600:.1f} h ago" if days else "last night: –"
    if now.silent:
        yield f"no answer: {', '.join(now.silent)}"


def _or_dash(value: float, form: str) -> str:
    return form.format(value) if value and not math.isnan(value) else "–"

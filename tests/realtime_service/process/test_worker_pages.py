"""The page of all workers: every sample of each, told apart, in both formats; and the board of any that answers."""

import contextlib
import http.client
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, make_wsgi_app
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from realtime_service.process import worker_pages
from realtime_service.process.worker_pages import WorkerPages, merged
from realtime_service.telemetry.metrics.workers import WorkerMetrics
from realtime_service.transport.board_pages import BoardPages
from realtime_service.transport.metrics_server import UNIX, serve_metrics

FORMATS = {"text": (generate_latest, parse_text), "openmetrics": (generate_openmetrics, parse_openmetrics)}

#: Label values with all that formats escape, and that a parser by hand would fall over.
VALUES = st.text(st.sampled_from('a "\\\n{}=,#ä'), max_size=6)
WORK = st.lists(st.tuples(VALUES, st.floats(0, 9)), max_size=4)


def registry(work: list[tuple[str, float]], *, more: bool = False) -> CollectorRegistry:
    """Of a worker that did so much; `more`: it has a family that others lack."""
    made = CollectorRegistry()
    Gauge("load", "Of \\ a\nlane.", registry=made).set(len(work))
    Counter("all", "All calls.", registry=made).inc(len(work), {"trace_id": "ab"})
    calls = Counter("calls", "Calls.", ["how"], registry=made)
    seconds = Histogram("seconds", "Their time.", ["how"], buckets=(1, 5), registry=made)
    for how, value in work:
        calls.labels(how).inc(value, {"trace_id": f"{len(how):x}"})
        seconds.labels(how).observe(value, {"trace_id": f"{len(how):x}"})
    if more:
        Gauge("more", "Of one alone.", registry=made).set(1)
    return made


def samples(families: Any, worker: str = "") -> list[tuple[Any, ...]]:
    """Each with its family, in an order of their own."""
    found: list[Metric] = list(families)
    assert len({it.name for it in found}) == len(found), "a family is on the page twice"
    added = {"worker": worker} if worker else {}
    return sorted(
        (
            it.name,
            it.type,
            it.documentation,
            one.name,
            sorted({**one.labels, **added}.items()),
            one.value,
            repr(one.exemplar),
        )
        for it in found
        for one in it.samples
    )


@pytest.mark.parametrize("named", FORMATS)
@given(first=WORK, second=WORK)
def test_a_merged_page_has_the_samples_of_all_and_names_their_worker(
    named: str, first: list[tuple[str, float]], second: list[tuple[str, float]]
) -> None:
    written, parsed = FORMATS[named]
    pages = {"": written(registry([])), "0": written(registry(first)), "1": written(registry(second, more=True))}
    page = merged((worker, it.decode()) for worker, it in pages.items())
    expected = (one for worker, it in pages.items() for one in samples(parsed(it.decode()), worker))
    assert samples(parsed(page)) == sorted(expected)


@contextlib.asynccontextmanager
async def serving(folder: Path, *workers: Any) -> AsyncIterator[tuple[str, WorkerMetrics]]:
    """The address of the page of these workers, each an application or None for one that hangs."""
    async with contextlib.AsyncExitStack() as stack:
        sockets = [str(folder / str(index)) for index in range(len(workers))]
        for file, app in zip(sockets, workers, strict=True):
            if app is None:
                hanging = stack.enter_context(socket.socket(socket.AF_UNIX))
                hanging.bind(file)
                hanging.listen()
            else:
                serve_metrics(stack, f"{UNIX}{file}", app)
        metrics = WorkerMetrics(len(workers))
        yield serve_metrics(stack, "127.0.0.1:0", WorkerPages(sockets, metrics)), metrics


def get(address: str, path: str, **headers: str) -> tuple[int, str, str]:
    with contextlib.closing(http.client.HTTPConnection(address, timeout=10)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type") or "", answer.read().decode()


async def test_a_worker_that_hangs_or_is_gone_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pages, "_ANSWER_SECONDS", 0.3)
    app = make_wsgi_app(registry([("a", 1.0)]))
    async with serving(tmp_path, None, app, make_wsgi_app(registry([("b", 2.0)]))) as (address, metrics):
        (tmp_path / "2").unlink()
        metrics.restarted(2)
        _, media, page = get(address, "/metrics", Accept=CONTENT_TYPE_LATEST)
        assert media.startswith("application/openmetrics-text")
        found = {
            (it.name, *it.labels.values()): it.value for family in parse_openmetrics(page) for it in family.samples
        }
        assert [found["tandem_worker_up", worker] for worker in "012"] == [0.0, 1.0, 0.0]
        assert [found["tandem_worker_restarts_total", worker] for worker in "012"] == [0.0, 0.0, 1.0]
        assert [found.get(("calls_total", worker, "a")) for worker in "012"] == [None, 1.0, None]


async def test_a_hostile_request_makes_no_worker_look_gone(tmp_path: Path) -> None:
    async with serving(tmp_path, make_wsgi_app(registry([("a", 1.0)]))) as (address, _):
        for path in ("/metrics?name[]=%0d%0aX:%20y", "/metrics?\x01\xff", "/\x7f", "/%0d%0a", "/metrics"):
            for accept in ("*/*", "\x01", "text/plain\r\n X: y"):
                host, _, port = address.rpartition(":")
                with socket.create_connection((host, int(port)), timeout=10) as raw:
                    raw.sendall(f"GET {path} HTTP/1.0\r\nAccept: {accept}\r\n\r\n".encode("latin-1"))
                    answer = b"".join(iter(lambda: raw.recv(65536), b"")).decode()
                assert answer.startswith("HTTP/1.0 200 OK"), (path, accept, answer)
                assert 'tandem_worker_up{worker="0"} 1.0' in answer, (path, accept, answer)


async def test_a_single_worker_has_the_series_of_the_replica(tmp_path: Path) -> None:
    async with serving(tmp_path, make_wsgi_app(registry([("a", 1.0)]))) as (address, _):
        page = get(address, "/metrics")[2]
        assert 'calls_total{how="a"} 1.0' in page
        assert 'tandem_worker_up{worker="0"} 1.0' in page


async def test_the_board_is_that_of_the_first_worker_that_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pages, "_ANSWER_SECONDS", 0.3)
    board = BoardPages(make_wsgi_app(CollectorRegistry()), lambda authorization: f'"{authorization}"'.encode())
    async with serving(tmp_path, None, board) as (address, _):
        assert get(address, "/board.json", Authorization="Bearer x") == (200, "application/json", '"Bearer x"')
        assert "<title>" in get(address, "/board")[2]
        (tmp_path / "1").unlink()
        assert get(address, "/board.json")[0] == 503


async def test_a_successor_takes_the_file_of_a_worker_that_was_killed(tmp_path: Path) -> None:
    file = tmp_path / "0"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(file))
    async with serving(tmp_path, make_wsgi_app(registry([]))) as (address, _):
        assert "tandem_worker_up" in get(address, "/metrics")[2]

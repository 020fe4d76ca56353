"""Postponed updates of metrics: each is made once, before anybody reads, and they do not heap up."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import Counter, generate_latest

from realtime_service.telemetry.metrics.postponed import _MOST, PostponedUpdates


def whole(registry: PostponedUpdates) -> str:
    return generate_latest(registry).decode()


def by_name(registry: PostponedUpdates) -> str:
    """As for a scrape that names its metrics."""
    return generate_latest(registry.restricted_registry(["calls_total"])).decode()


@pytest.mark.parametrize("page", [whole, by_name])
def test_a_page_has_all_updates(page: Callable[[PostponedUpdates], str]) -> None:
    registry = PostponedUpdates()
    calls = Counter("calls", "Calls.", registry=registry)
    for _ in range(3):
        registry.later(calls.inc)
    registry.later(calls.inc, 0.5)
    assert "calls_total 3.5" in page(registry)


def test_a_bounded_number_of_updates_waits_and_they_keep_their_order() -> None:
    registry, made = PostponedUpdates(), list[int]()
    for number in range(_MOST - 1):
        registry.later(made.append, number)
    assert not made
    registry.later(made.append, _MOST - 1)
    assert made == list(range(_MOST))


def test_a_page_waits_for_an_update_that_another_thread_is_at() -> None:
    registry, begun, finish = PostponedUpdates(), threading.Event(), threading.Event()
    calls = Counter("calls", "Calls.", registry=registry)

    def count() -> None:
        begun.set()
        assert finish.wait(60)
        calls.inc()

    registry.later(count)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(registry.update)
        assert begun.wait(60)
        page = pool.submit(whole, registry)
        # Long enough for a page that does not wait.
        threading.Timer(0.3, finish.set).start()
        assert "calls_total 1.0" in page.result()


def test_each_update_is_made_once_whoever_makes_it() -> None:
    registry, threads, each = PostponedUpdates(), 4, 20_000
    calls = Counter("calls", "Calls.", registry=registry)

    def call(_: int) -> None:
        for _ in range(each):
            registry.later(calls.inc)

    with ThreadPoolExecutor(threads + 1) as pool:
        callers = [pool.submit(call, number) for number in range(threads)]
        while not all(it.done() for it in callers):
            pool.submit(whole, registry).result()
        for it in callers:
            it.result()
    assert registry.get_sample_value("calls_total") == threads * each

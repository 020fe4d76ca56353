"""The label `model` of metrics: a bounded number of values, whatever is promoted in the life of a process."""

import itertools

import psutil
import pytest
from prometheus_client import Gauge, generate_latest

from realtime_service.settings import Lane, ServiceSettings, lanes
from realtime_service.telemetry.metrics import _MOST_MODELS, Metrics, Outcome
from shared_model.types import Device, ServingPath


def test_the_models_have_a_bounded_number_of_labels() -> None:
    metrics = Metrics(())
    registry = metrics.registry
    for number in range(3 * _MOST_MODELS):
        metrics.answered(ServingPath.DYNAMIC, 0.01, met=True, model=f"model-{number}")
        metrics.ended(None, Outcome.INVALID, f"model-{number}")

    def counted(model: str, path: str, outcome: str) -> float | None:
        labels = {"path": path, "outcome": outcome, "model": model}
        return registry.get_sample_value("tandem_requests_total", labels)

    assert (counted("model-0", "dynamic", "met"), counted("model-0", "none", "invalid")) == (1.0, 1.0)
    assert counted("other", "dynamic", "met") == 2 * _MOST_MODELS
    (requests,) = [it for it in registry.collect() if it.name == "tandem_requests"]
    models = {it.labels["model"] for it in requests.samples}
    assert len(models - {""}) == _MOST_MODELS + 1


def test_series_that_alerts_ask_for_begin_with_the_process() -> None:
    """Also those of a failure that never was, and of a success that never was: alerts divide by both."""
    metrics = Metrics([lanes(ServiceSettings(), Device.CPU)[ServingPath.LATENCY]])
    registry = metrics.registry
    metrics.expect_models(["main"])
    paths = ("none", "latency", "dynamic", "throughput", "precomputed")
    for path, outcome, model in itertools.product(paths, Outcome, ("", "main")):
        labels = {"path": path, "outcome": outcome, "model": model}
        assert registry.get_sample_value("tandem_requests_total", labels) == 0, labels
    for path in ("latency", "precomputed"):
        labels = {"path": path, "model": "main", "le": "0.05"}
        assert registry.get_sample_value("tandem_request_seconds_bucket", labels) == 0, labels
    for name in ("tandem_nightly_expected", "tandem_nightly_last_success_timestamp_seconds", "tandem_redis_up"):
        assert registry.get_sample_value(name) == 0


def test_each_model_has_its_release_and_its_canary() -> None:
    metrics = Metrics(())
    registry = metrics.registry
    metrics.set_serving({"main": ("main-1", "", 0.0), "side": ("side-1", "side-2", 0.25)})

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("tandem_release_info", model="side", release="side-1") == 1.0
    assert value("tandem_canary_weight", model="side", release="side-2") == 0.25
    metrics.set_serving({"main": ("main-2", "", 0.0)})
    assert value("tandem_release_info", model="main", release="main-2") == 1.0
    assert value("tandem_release_info", model="side", release="side-1") is None


def test_a_target_is_a_series_until_it_is_none() -> None:
    latency, throughput = (
        lanes(ServiceSettings(), Device.CPU)[it] for it in (ServingPath.LATENCY, ServingPath.THROUGHPUT)
    )
    metrics = Metrics([latency, throughput])

    def target(lane: Lane) -> float | None:
        return metrics.registry.get_sample_value("tandem_lane_target_seconds", {"path": lane.path})

    metrics.set_targets({latency.path: 0.1, throughput.path: 0.0}, {})
    assert (target(latency), target(throughput)) == (0.1, None)
    metrics.set_targets({latency.path: 0.0, throughput.path: 0.2}, {})
    assert (target(latency), target(throughput)) == (None, 0.2)


def test_what_stays_is_never_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a scrape comes while series change: one is made wherever a series goes."""
    metrics = Metrics(())
    pages = []

    def watch(name: str) -> None:
        change = getattr(Gauge, name)

        def changed(gauge: Gauge, *labels: str) -> None:
            change(gauge, *labels)
            pages.append(generate_latest(metrics.registry).decode())

        monkeypatch.setattr(Gauge, name, changed)

    watch("clear")
    watch("remove")
    for day, other in (("2026-07-01", 1), ("2026-07-02", 2)):
        metrics.set_targets({ServingPath.LATENCY: 0.1, ServingPath.DYNAMIC: 0.1 * (other % 2)}, {})
        metrics.set_serving({"main": ("main-1", "main-2", 0.25), f"side-{other}": ("main-1", "", 0.0)})
        metrics.set_failed([("main-9", "digest"), (f"main-{other}", "digest")])
        metrics.nights.set_epochs({"main-1": 1.0, f"main-1{other}": 1.0})
        metrics.nights.set_verdicts("2026-07-01", {"rows": "passed", f"rows-{other}": "passed"})
        metrics.nights.set_published(day, 1, 1.0, 1.0)

    stays = (
        'lane_target_seconds{path="latency"}',
        'release_info{model="main",release="main-1"}',
        'canary_weight{model="main",release="main-2"}',
        'release_failed{reason="digest",release="main-9"}',
        'epoch_day_timestamp_seconds{release="main-1"}',
        'nightly_gate_info{ds="2026-07-01",gate="rows",outcome="passed"}',
    )
    for name in stays:
        missing = sum(f"tandem_{name}" not in page for page in pages)
        assert missing == 0, name
    assert len(pages) == 8


def test_the_process_tells_its_memory() -> None:
    resident = Metrics(()).registry.get_sample_value("process_resident_memory_bytes")
    assert resident == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)

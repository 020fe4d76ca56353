"""Metrics of nightly runs, which the batch job leaves in Redis, and of the epochs that they have published."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge


class NightMetrics:
    """Of the default model's runs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        self._rows = gauge("tandem_nightly_rows", "Rows the last published nightly run scored.", "ds")
        self._rate = gauge("tandem_nightly_rows_per_second", "Its rate.", "ds")
        self._at = gauge("tandem_nightly_last_success_timestamp_seconds", "When it published, UTC.")
        self._quarantined = gauge("tandem_nightly_quarantined_rows", "Lines it quarantined.", "ds")
        self._expected = gauge("tandem_nightly_expected", "1 where one is to publish every day.")
        self._release = gauge("tandem_nightly_release_info", "The release that it scored with.", "release")
        self._gates = gauge(
            "tandem_nightly_gate_info", "The verdicts on the day that was judged last.", "ds", "gate", "outcome"
        )
        self._epochs = gauge(
            "tandem_epoch_day_timestamp_seconds", "The day whose scores answer, its begin in UTC.", "release"
        )

    def set_published(
        self, ds: str, rows: int, rows_per_second: float, finished_at: float, quarantined: int = 0
    ) -> None:
        """Set the figures of the last run that published."""
        gauges = (self._rows, self._rate, self._quarantined)
        for gauge, value in zip(gauges, (rows, rows_per_second, quarantined), strict=True):
            gauge.clear()
            gauge.labels(ds).set(value)
        self._at.set(finished_at)

    def set_release(self, release: str) -> None:
        self._release.clear()
        self._release.labels(release).set(1)

    def set_verdicts(self, ds: str, outcomes: Mapping[str, str]) -> None:
        """Set the outcome of each gate on a day, committed or not."""
        self._gates.clear()
        for gate, outcome in outcomes.items():
            self._gates.labels(ds, gate, outcome).set(1)

    def set_expected(self, expected: bool) -> None:
        self._expected.set(expected)

    def set_epochs(self, days: Mapping[str, float]) -> None:
        """Set the days of the epochs that answer, by release: the seconds in which each began."""
        self._epochs.clear()
        for release, began in days.items():
            self._epochs.labels(release).set(began)

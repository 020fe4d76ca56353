"""Metrics of nightly runs, which the batch job leaves in Redis, and of the epochs that they have published."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge

from realtime_service.telemetry.metrics.changing_series import ChangingSeries


class NightMetrics:
    """Of the default model's runs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        def changing(name: str, text: str, *labels: str) -> ChangingSeries:
            return ChangingSeries(gauge(name, text, *labels))

        self._rows = changing("tandem_nightly_rows", "Rows the last published nightly run scored.", "ds")
        self._rate = changing("tandem_nightly_rows_per_second", "Its rate.", "ds")
        self._at = gauge("tandem_nightly_last_success_timestamp_seconds", "When it published, UTC.")
        self._quarantined = changing("tandem_nightly_quarantined_rows", "Lines it quarantined.", "ds")
        self._expected = gauge("tandem_nightly_expected", "1 where one is to publish every day.")
        self._release = changing("tandem_nightly_release_info", "The release that it scored with.", "release")
        self._gates = changing(
            "tandem_nightly_gate_info", "The verdicts on the day that was judged last.", "ds", "gate", "outcome"
        )
        self._epochs = changing(
            "tandem_epoch_day_timestamp_seconds", "The day whose scores answer, its begin in UTC.", "release"
        )

    def set_published(
        self, ds: str, rows: int, rows_per_second: float, finished_at: float, quarantined: int = 0
    ) -> None:
        """Set the figures of the last run that published."""
        gauges = (self._rows, self._rate, self._quarantined)
        for gauge, value in zip(gauges, (rows, rows_per_second, quarantined), strict=True):
            gauge.replace({(ds,): value})
        self._at.set(finished_at)

    def set_release(self, release: str) -> None:
        self._release.replace({(release,): 1})

    def set_verdicts(self, ds: str, outcomes: Mapping[str, str]) -> None:
        """Set the outcome of each gate on a day, committed or not."""
        self._gates.replace({(ds, gate, outcome): 1 for gate, outcome in outcomes.items()})

    def set_expected(self, expected: bool) -> None:
        self._expected.set(expected)

    def set_epochs(self, days: Mapping[str, float]) -> None:
        """Set the days of the epochs that answer, by release: the seconds in which each began."""
        self._epochs.replace({(release,): began for release, began in days.items()})

"""Gauges of what counts now, such as the releases that serve: their series come and go."""

from collections.abc import Mapping

from prometheus_client import Gauge


class ChangingSeries:
    """A gauge with the series that were set last, and no others."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._series: dict[tuple[str, ...], float] = {}

    def replace(self, series: Mapping[tuple[str, ...], float]) -> None:
        """`series`: values by labels. Those that stay are never away, because a scrape may come at any time."""
        if series == self._series:
            return
        for labels, value in series.items():
            self._gauge.labels(*labels).set(value)
        for gone in self._series.keys() - series.keys():
            self._gauge.remove(*gone)
        self._series = dict(series)

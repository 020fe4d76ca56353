"""python -m tests.benchmarks.peers.table peers.json: writes the table and the plot of a run into the service's README.

The table stands between `BEGIN` and `END`; the plot, calls a second over connections, lies beside the results.
"""

import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pygal

from tests.benchmarks.harness import REPOSITORY

PAGE = REPOSITORY / "realtime_service" / "README.md"
PLOT = REPOSITORY / "tests/benchmarks/results/peers.svg"
_PICTURE = "![Answers a second over connections](../tests/benchmarks/results/peers.svg)"
BEGIN, END = "<!-- table: make bench-peers -->", "<!-- end of table -->"
_CLOSED = ("c1", "c2", "c16", "c64")
_BETWEEN = re.compile(f"{BEGIN}\n.*?{END}", re.DOTALL)

Rows = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]


def filled(page: str, document: Mapping[str, Any]) -> str:
    """The page with the table of a run, medians of its rounds."""
    rows, machine = document["conditions"]["rows"], document["machine"]
    head = ["| calls a second | c1 p50 / p99, ms | c2 | c16 | c64 |", "|---|---|---|---|---|"]
    lines = head + [_line(server, rows[server]) for server in rows]
    source = f"{machine['cpu']}, {machine['cores']} cores shared with h2load, {document['date']}."
    return _BETWEEN.sub(lambda _: "\n".join([BEGIN, *lines, "", source, "", _PICTURE, END]), page)


def plot(rows: Rows) -> str:
    chart = pygal.XY(
        title="Answers a second over connections", logarithmic=False, show_x_guides=False, width=760, height=360
    )
    for server, found in rows.items():
        points = [(int(name[1:]), _median(found[name]["rate"])) for name in _CLOSED if name in found]
        chart.add(server, points)
    return str(chart.render(is_unicode=True))


def _line(server: str, found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    alone = found["c1"]
    rates = [f"{_median(found[name]['rate']):.0f}" for name in _CLOSED[1:]]
    return f"| {server} | {_median(alone['p50_ms']):.1f} / {_median(alone['p99_ms']):.1f} | {' | '.join(rates)} |"


def _median(runs: Sequence[float]) -> float:
    return statistics.median(runs)


def main(path: str) -> None:
    document, page = json.loads(Path(path).read_text()), PAGE.read_text()
    if BEGIN not in page:
        sys.exit(f"{PAGE.relative_to(REPOSITORY)} has no place for the table: add the lines {BEGIN!r} and {END!r}")
    PAGE.write_text(filled(page, document))
    PLOT.write_text(plot(document["conditions"]["rows"]))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""python -m tests.benchmarks.peers.table peers.json: writes the tables and the plot of a run into the service's README.

The tables stand between `BEGIN` and `END`; the plot, calls a second over connections, lies beside the results.
"""

import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pygal

from tests.benchmarks.harness import REPOSITORY

PAGE = REPOSITORY / "realtime_service" / "README.md"
PLOT = REPOSITORY / "tests/benchmarks/results/peers.svg"
_PICTURE = "![Answers a second over connections](../tests/benchmarks/results/peers.svg)"
BEGIN, END = "<!-- table: make bench-peers -->", "<!-- end of table -->"
_CLOSED = ("c1", "c2", "c16", "c64")
_TIMED = ("c1", "c16", "30 %", "60 %", "90 %", "120 %", "burst")
_MEANINGS = {
    "c16": "c16: 16 connections, one call each",
    "30 %": "30 %: of the slowest peer at c64, evenly",
    "burst": "burst: 64 calls at once",
}
_BETWEEN = re.compile(f"{BEGIN}\n.*?{END}", re.DOTALL)

#: The values of each round.
Figures = Mapping[str, Sequence[float]]
#: Server → row → figure.
Rows = Mapping[str, Mapping[str, Figures]]


def filled(page: str, document: Mapping[str, Any]) -> str:
    """The page with the tables of a run."""
    rows, machine = document["conditions"]["rows"], document["machine"]
    meaning = "; ".join(text for name, text in _MEANINGS.items() if name in _shown(rows, _TIMED))
    source = f"{meaning}. {machine['cpu']}, {machine['cores']} cores shared with h2load, {document['date']}."
    lines = (
        *_table("answers a second, median (range)", rows, _CLOSED, _rate),
        "",
        *_table("p50 / p99, ms", rows, _TIMED, _milliseconds),
        "",
        source,
        "",
        _PICTURE,
    )
    return _BETWEEN.sub(lambda _: "\n".join([BEGIN, *lines, END]), page)


def plot(rows: Rows) -> str:
    chart = pygal.XY(
        title="Answers a second over connections", logarithmic=False, show_x_guides=False, width=760, height=360
    )
    for server, found in rows.items():
        points = [(int(name[1:]), statistics.median(found[name]["rate"])) for name in _CLOSED if name in found]
        chart.add(server, points)
    return str(chart.render(is_unicode=True))


def _table(title: str, rows: Rows, columns: Sequence[str], cell: Callable[[Figures], str]) -> list[str]:
    """A line for each server."""
    shown = _shown(rows, columns)
    lines = [(title, *shown), ("---",) * (1 + len(shown))]
    lines += [(server, *(cell(found[name]) for name in shown)) for server, found in rows.items()]
    return [f"| {' | '.join(line)} |" for line in lines]


def _shown(rows: Rows, columns: Sequence[str]) -> list[str]:
    """Those that the run did not leave out."""
    return [name for name in columns if all(name in found for found in rows.values())]


def _rate(found: Figures) -> str:
    runs = found["rate"]
    return f"{statistics.median(runs):.0f} ({min(runs):.0f}–{max(runs):.0f})"


def _milliseconds(found: Figures) -> str:
    return " / ".join(f"{statistics.median(found[name]):.1f}" for name in ("p50_ms", "p99_ms"))


def main(path: str) -> None:
    document, page = json.loads(Path(path).read_text()), PAGE.read_text()
    if BEGIN not in page:
        sys.exit(f"{PAGE.relative_to(REPOSITORY)} has no place for the table: add the lines {BEGIN!r} and {END!r}")
    PAGE.write_text(filled(page, document))
    PLOT.write_text(plot(document["conditions"]["rows"]))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Tables of settings and metrics in the READMEs of packages, written from the code by `make docs`.

A table stands between `<!-- table: MODULE.CLASS -->` and `<!-- end of table -->`. The class is a settings class, or
`realtime_service.telemetry.metrics.Metrics`. `<!-- figures: FILE -->` begins one of models' speed, from a benchmark's
results.
"""

import dataclasses
import importlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from prometheus_client import ProcessCollector

from realtime_service.telemetry.metrics import Metrics
from realtime_service.telemetry.metrics.workers import WorkerMetrics
from shared_model import settings
from tests.benchmarks.devices import widths_table

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("shared_model", "batch_job", "realtime_service", "dags")
PAGES = [REPOSITORY / package / "README.md" for package in PACKAGES]
COMMAND = "make docs"

_TABLE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_FIGURES = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
_TYPES = {bool: "true or false", int: "a whole number", float: "a number", Path: "a path", str: "text"}


def classes(page: str) -> list[str]:
    """The classes whose tables are on a page."""
    return [found[2] for found in _TABLE.finditer(page)]


def filled(page: str) -> str:
    """The page with every table as the code has it."""
    page = _TABLE.sub(lambda found: f"{found[1]}{_table(found[2])}{found[3]}", page)
    return _FIGURES.sub(lambda found: f"{found[1]}{_lines(widths_table.rows(REPOSITORY / found[2]))}{found[3]}", page)


def _table(name: str) -> str:
    module, _, attribute = name.rpartition(".")
    described = getattr(importlib.import_module(module), attribute)
    return _lines(_metric_rows() if described is Metrics else _setting_rows(described))


def _lines(rows: Iterator[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |\n" for row in rows)


def _setting_rows(cls: type) -> Iterator[Sequence[str]]:
    """One row for each setting; settings that several groups have share a row, with one name and default a group."""
    yield "variable", "default", "accepts", "meaning"
    yield ("---",) * 4
    groups: dict[type, list[dataclasses.Field[Any]]] = {}
    for field in dataclasses.fields(cls):
        if grouped := field.metadata.get("group"):
            groups.setdefault(grouped, []).append(field)
        else:
            yield _setting_row(cls, field, [settings.env_name(field)], [field.default])
    for grouped, owners in groups.items():
        for field in dataclasses.fields(grouped):
            names = [settings.env_name(field, f"{settings.env_name(owner)}_") for owner in owners]
            yield _setting_row(grouped, field, names, [getattr(owner.default, field.name) for owner in owners])


def _setting_row(
    cls: type, field: dataclasses.Field[Any], names: Sequence[str], defaults: Sequence[object]
) -> Sequence[str]:
    check = field.metadata["check"]
    accepts = check.expected.partition(";")[0] if check else _TYPES[get_type_hints(cls)[field.name]]
    return ", ".join(f"`{name}`" for name in names), ", ".join(map(_shown, defaults)), accepts, field.metadata["help"]


def _shown(default: object) -> str:
    match default:
        case "":
            return "–"
        case bool():
            return f"`{str(default).lower()}`"
        case float():
            return f"`{default:g}`"
        case Path():
            # Relative to the folder in which a process starts.
            return f"`{default.name}`"
    return f"`{default}`"


def _metric_rows() -> Iterator[Sequence[str]]:
    yield "metric", "type", "labels", "meaning"
    yield ("---",) * 4
    # In the order in which they were registered.
    registered: list[Any] = [it for of in (Metrics([]), WorkerMetrics(0)) for it in of.registry._collector_to_names]
    # A process's own figures have the names of Prometheus' clients.
    for collector in (it for it in registered if not isinstance(it, ProcessCollector)):
        [family] = collector.describe()
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in collector._labelnames)
        yield f"`{name}`", family.type, labels or "–", family.documentation


def main() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text()))


if __name__ == "__main__":
    main()

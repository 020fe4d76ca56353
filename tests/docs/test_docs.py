"""Documentation is tested: what a person can set, call or watch is written down, and what is written down exists."""

import dataclasses
import importlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared_model import settings, variables

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
ARCHITECTURE = REPOSITORY / "ARCHITECTURE.md"
PAGES = [README, ARCHITECTURE, REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "CHANGELOG.md"]
SETTINGS_MODULES = (
    "shared_model.settings",
    "shared_model.evaluation.gate_settings",
    "realtime_service.settings",
    "batch_job.settings",
    "tandem_stack.stack",
)

#: Read from the environment without a settings class: by Airflow's side, which has none, and where the others are.
OTHER_VARIABLES = {"TANDEM_RUNTIME_PREFIX", "TANDEM_SPARK_GPU_SCRIPT", "TANDEM_SPARK_TASK_GPU", settings.CONFIG}


def setting_names() -> Iterator[str]:
    for module in SETTINGS_MODULES:
        classes = [
            value
            for value in vars(importlib.import_module(module)).values()
            if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module
        ]
        grouped = {field.metadata.get("group") for cls in classes for field in dataclasses.fields(cls)}
        for cls in classes:
            if cls not in grouped:
                yield from settings.names(cls)


def metric_names() -> set[str]:
    """Names as Prometheus sees them, without the suffixes a histogram's series have."""
    return set(re.findall(r'"(tandem_[a-z_]+)"', (REPOSITORY / "realtime_service" / "metrics.py").read_text()))


def watched_metrics() -> set[str]:
    """Names that alert rules and dashboards ask for."""
    texts = [path.read_text() for path in (REPOSITORY / ".deploy").rglob("*") if path.suffix in (".yml", ".json")]
    names = set(re.findall(r"\btandem_[a-z_]+", "\n".join(texts)))
    return {re.sub("_(bucket|sum|count)$", "", name) for name in names}


def test_make_help_lists_every_target() -> None:
    targets = re.findall(r"^([a-z][a-z-]*):(?!=)", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    listed = subprocess.run(["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert {"demo", "up", "test", "check", "help"} <= set(targets)
    assert [target for target in targets if not re.search(rf"\b{target}\b\s+\S", listed)] == []


def test_every_setting_is_documented() -> None:
    written = "\n".join(path.read_text() for path in (README, ARCHITECTURE, REPOSITORY / ".env.example"))
    names = [*setting_names(), *OTHER_VARIABLES, "REDIS_URL"]
    assert len(names) > 20
    assert [name for name in names if not re.search(rf"\b{name}\b", written)] == []


@pytest.mark.parametrize("page", [*PAGES, REPOSITORY / "docker-compose.yml"], ids=lambda page: page.name)
def test_settings_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"\bTANDEM_[A-Z0-9_]+[A-Z]\b", page.read_text()))
    removed = variables.REMOVED if page.name == "CHANGELOG.md" else frozenset[str]()
    assert named - set(setting_names()) - OTHER_VARIABLES - removed == set()


def test_the_list_of_known_variables_is_that_of_all_settings() -> None:
    assert set(setting_names()) | OTHER_VARIABLES == variables.KNOWN


def test_every_metric_is_documented() -> None:
    written = ARCHITECTURE.read_text()
    assert len(metric_names()) > 10
    assert [name for name in sorted(metric_names()) if name not in written] == []


def test_what_is_watched_is_exported() -> None:
    assert watched_metrics() - metric_names() == set()


def test_the_board_shows_both_service_levels_side_by_side() -> None:
    board: dict[str, Any] = json.loads((REPOSITORY / ".deploy/grafana/dashboards/sla.json").read_text())
    halves: dict[int, set[str]] = {0: set(), 12: set()}
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            if lane := re.search('path="(latency|throughput)"', target["expr"]):
                halves[panel["gridPos"]["x"] // 12 * 12].add(lane[1])
    assert halves == {0: {"latency"}, 12: {"throughput"}}


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def test_python_in_the_readme_compiles_and_imports_what_exists() -> None:
    assert python_blocks()
    for block in python_blocks():
        compile(block, README.name, "exec")
        for module in re.findall(
            r"^(?:from|import) ((?:shared_model|realtime_service|batch_job|protos)[\w.]*)", block, re.M
        ):
            importlib.import_module(module)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_shown_exist(page: Path) -> None:
    """`python -m PACKAGE COMMAND` and `make TARGET`, as a page spells them."""
    text = page.read_text()
    targets = re.findall(r"^([a-z][a-z-]*):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= set(targets)
    for package in set(re.findall(r"python -m (shared_model|realtime_service|batch_job)\b", text)):
        sources = [REPOSITORY / package / "__main__.py", *(REPOSITORY / package).glob("commands/*.py")]
        source = "".join(path.read_text() for path in sources)
        for command in set(re.findall(rf"python -m {package} ([a-z][a-z-]+)", text)):
            assert f'"{command}"' in source, f"python -m {package} {command}"

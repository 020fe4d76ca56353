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

from batch_job.launch import operating
from shared_model import settings, variables
from tests.docs import tables

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
ARCHITECTURE = REPOSITORY / "ARCHITECTURE.md"
PACKAGES = tables.PAGES
OTHERS = [
    REPOSITORY / f"{name}.md"
    for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY", ".deploy/RUNBOOK", ".deploy/helm/README")
]
PAGES = [README, ARCHITECTURE, *OTHERS, *PACKAGES]
SETTINGS_MODULES = (
    "shared_model.settings",
    "shared_model.tls",
    "shared_model.evaluation.gate_settings",
    "realtime_service.settings",
    "batch_job.settings",
    "tandem_stack.stack",
)

#: Read from the environment without a settings class: by Airflow's side, which has none, and where the others are.
OTHER_VARIABLES = {"TANDEM_RUNTIME_PREFIX", "TANDEM_SPARK_GPU_SCRIPT", "TANDEM_SPARK_TASK_GPU", settings.CONFIG}
#: Those that the DAG reads.
OTHER_VARIABLES |= {"TANDEM_APPROVERS", "TANDEM_APPROVAL_SECONDS", "TANDEM_LATE_SECONDS"}
OTHER_VARIABLES |= {operating.SPARK_URL, operating.BOARD_URL, operating.FURTHER_MODELS}


def settings_classes() -> dict[str, type]:
    """Classes that declare settings, by module and name, without those that are groups of another one."""
    found: dict[str, type] = {}
    for module in SETTINGS_MODULES:
        for value in vars(importlib.import_module(module)).values():
            if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module:
                found[f"{module}.{value.__name__}"] = value
    grouped = {field.metadata.get("group") for cls in found.values() for field in dataclasses.fields(cls)}
    return {name: cls for name, cls in found.items() if cls not in grouped and any(settings.names(cls))}


def setting_names() -> Iterator[str]:
    for cls in settings_classes().values():
        yield from settings.names(cls)


def metric_names() -> set[str]:
    """Names as Prometheus sees them, without the suffixes a histogram's series have."""
    written = (REPOSITORY / "realtime_service" / "telemetry" / "metrics").glob("*.py")
    return set(re.findall(r'"(tandem_[a-z_]+)"', "\n".join(path.read_text() for path in written)))


def watched_metrics() -> set[str]:
    """Names that alert rules and dashboards ask for."""
    texts = [path.read_text() for path in (REPOSITORY / ".deploy").rglob("*") if path.suffix in (".yml", ".json")]
    names = set(re.findall(r"\btandem_[a-z_]+", "\n".join(texts)))
    return {re.sub("_(bucket|sum|count)$", "", name) for name in names}


@pytest.mark.heavy
def test_make_help_lists_every_target() -> None:
    targets = re.findall(r"^([a-z][a-z-]*):(?!=)", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    listed = subprocess.run(["make", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert {"demo", "up", "test", "check", "help"} <= set(targets)
    assert [target for target in targets if not re.search(rf"\b{target}\b\s+\S", listed)] == []


def page_id(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.mark.parametrize("page", PACKAGES, ids=page_id)
def test_tables_are_as_the_code_has_them(page: Path) -> None:
    text = page.read_text()
    if tables.filled(text) != text:
        pytest.fail(f"{page_id(page)}: a table of settings or metrics is stale; run `{tables.COMMAND}`", pytrace=False)


@pytest.mark.parametrize("change", [("`600`", "`601`"), ("| Requests by how they ended. |", "| Requests. |")])
def test_control_a_stale_table_is_found(change: tuple[str, str]) -> None:
    text = (REPOSITORY / "realtime_service" / "README.md").read_text()
    stale = text.replace(*change)
    assert stale != text
    assert tables.filled(stale) == text


def test_every_class_of_settings_and_the_metrics_have_one_table() -> None:
    shown = [name for page in PACKAGES for name in tables.classes(page.read_text())]
    declared = [name for name in settings_classes() if not name.startswith("tandem_stack.")]
    assert sorted(shown) == sorted([*declared, "realtime_service.telemetry.metrics.Metrics"])


def test_every_setting_is_documented() -> None:
    written = "\n".join(path.read_text() for path in (README, *PACKAGES, REPOSITORY / ".env.example"))
    names = [*setting_names(), *OTHER_VARIABLES, "REDIS_URL"]
    assert len(names) > 20
    assert [name for name in names if not re.search(rf"\b{name}\b", written)] == []


@pytest.mark.parametrize("page", [*PAGES, REPOSITORY / "docker-compose.yml"], ids=page_id)
def test_settings_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"\bTANDEM_[A-Z0-9_]+[A-Z]\b", page.read_text()))
    removed = variables.REMOVED if page.name == "CHANGELOG.md" else frozenset[str]()
    assert named - set(setting_names()) - OTHER_VARIABLES - removed == set()


def test_the_list_of_known_variables_is_that_of_all_settings() -> None:
    assert set(setting_names()) | OTHER_VARIABLES == variables.KNOWN


def test_what_is_watched_is_exported() -> None:
    assert len(metric_names()) > 10
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
    pages = "\n".join(page.read_text() for page in PAGES)
    return re.findall(r"^```python\n(.*?)^```", pages, re.MULTILINE | re.DOTALL)


def test_python_in_documents_compiles_and_imports_what_exists() -> None:
    assert python_blocks()
    for block in python_blocks():
        compile(block, "block of a document", "exec")
        for module in re.findall(
            r"^(?:from|import) ((?:shared_model|realtime_service|batch_job|protos)[\w.]*)", block, re.M
        ):
            importlib.import_module(module)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_that_are_shown_exist(page: Path) -> None:
    """`python -m PACKAGE COMMAND` and `make TARGET`, as a page spells them."""
    text = page.read_text()
    targets = re.findall(r"^([a-z][a-z-]*):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= set(targets)
    for package in set(re.findall(r"python -m (shared_model|realtime_service|batch_job)\b", text)):
        folder = REPOSITORY / package
        sources = [folder / "__main__.py", *folder.glob("command_line.py"), *folder.glob("commands/*.py")]
        source = "".join(path.read_text() for path in sources)
        for command in set(re.findall(rf"python -m {package} ([a-z][a-z-]+)", text)):
            assert f'"{command}"' in source, f"python -m {package} {command}"
